"""The llama family: RMSNorm, rotary positions, grouped-query attention, gated MLP."""

from __future__ import annotations

from flarechat.engine.recipes.llama.config import ModelArgs
from flarechat.engine.recipes.llama.model import Model
from flarechat.engine.recipes.llama.mtp import load_head, price_head
from flarechat.engine.recipes.llama.weights import load, parameters, price, price_stored, unstorable

__all__ = [
    "Model",
    "ModelArgs",
    "load",
    "load_head",
    "parameters",
    "price",
    "price_head",
    "price_stored",
    "unstorable",
]
