"""Models on disk as checkpoints: one `load_checkpoint` for GGUF files and model folders.

convert      GGUF to a converted file, once, and its loading
tiles        weights as the CPU's kernels read them
llama        what a llama GGUF names and orders differently
folder       config.json, tokenizer.json and safetensors files
checkpoint   what all of them come to
qwen38       the logical tensors of a Qwen3.8 checkpoint, whatever it packs
quantisation what its configuration says of packed tensors
formats      packed numbers: what their bytes mean, and how to write them
"""

from __future__ import annotations

from flarechat.engine.weights.checkpoint import Checkpoint
from flarechat.engine.weights.convert import load_checkpoint

__all__ = ["Checkpoint", "load_checkpoint"]
