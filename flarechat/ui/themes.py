"""Chooses the colour theme. Owns what "auto" means; knows no widget."""

from __future__ import annotations

import os
from collections.abc import Mapping

from textual.theme import BUILTIN_THEMES

from flarechat.errors import SettingsError

NAMES = {"dark": "textual-dark", "light": "textual-light"}


def choose(theme: str, env: Mapping[str, str] | None = None) -> str:
    """The theme's full name: auto follows TEXTUAL_THEME, then the terminal's COLORFGBG."""
    found = os.environ if env is None else env
    if theme == "auto":
        theme = found.get("TEXTUAL_THEME") or ("light" if _on_light(found) else "dark")
    full = NAMES.get(theme, theme)
    if full not in BUILTIN_THEMES:
        raise SettingsError(
            f"--theme {theme} is unknown.", f"Use auto, dark, light or {', '.join(BUILTIN_THEMES)}."
        )
    return full


def _on_light(env: Mapping[str, str]) -> bool:
    """Whether the terminal says its background is one of the light colours."""
    background = env.get("COLORFGBG", "").rpartition(";")[2]
    return background in ("7", "15")
