"""Models on disk as checkpoints: one `load_checkpoint` for GGUF files and model folders.

convert      GGUF to a converted file, once, and its loading
llama        what a llama GGUF names and orders differently
folder       config.json, tokenizer.json and safetensors files
checkpoint   what all of them come to
"""

from __future__ import annotations

from flarechat.engine.weights.checkpoint import Checkpoint
from flarechat.engine.weights.convert import load_checkpoint

__all__ = ["Checkpoint", "load_checkpoint"]
