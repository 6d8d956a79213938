"""Recipes: one folder a model family. A table with lazy imports, keyed by architecture."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flarechat.errors import ModelError

RECIPES = {
    "llama": "flarechat.engine.recipes.llama",
    "qwen4_exp": "flarechat.engine.recipes.qwen38",
    "qwen4_exp_text": "flarechat.engine.recipes.qwen38",
}
SUPPORTED = tuple(RECIPES)


def recipe_for(architecture: str) -> Any:
    """The recipe module of an architecture: ModelArgs, load and price, and, where the family takes
    MTP heads, load_head and price_head; find_heads where a head may lie in the checkpoint."""
    if architecture not in RECIPES:
        raise ModelError(
            f"The architecture {architecture!r} is not supported.",
            f"Supported: {', '.join(SUPPORTED)}. Choose another model with --model.",
        )
    return import_module(RECIPES[architecture])
