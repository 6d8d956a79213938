"""The Qwen3.8-Flash-Next family: gated delta recurrences and sparse attention over blocks, a
residual of several streams, n-gram features, mixtures of experts."""

from __future__ import annotations

from flarechat.engine.recipes.qwen38.config import ModelArgs
from flarechat.engine.recipes.qwen38.model import Model
from flarechat.engine.recipes.qwen38.mtp_file import find_heads, load_head, price_head
from flarechat.engine.recipes.qwen38.price import parameters, price_stored, price_stored_head
from flarechat.engine.recipes.qwen38.weights import load, price

PACKS_HALF = False

__all__ = [
    "PACKS_HALF",
    "Model",
    "ModelArgs",
    "find_heads",
    "load",
    "load_head",
    "parameters",
    "price",
    "price_head",
    "price_stored",
    "price_stored_head",
]
