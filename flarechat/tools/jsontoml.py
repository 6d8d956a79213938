"""Reads a file of tools as plain values, JSON or TOML, and nothing that either is lax about: no key
twice, no number that is none.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from flarechat.errors import SettingsError, reason_of
from flarechat.tools.builtin import BUILT_IN

MAX_FILE = 4 << 20


def content_of(path: Path) -> Any:
    """The file's value, read as TOML if its name ends so and as JSON otherwise."""
    form = "TOML" if path.suffix.lower() == ".toml" else "JSON"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise SettingsError(f"{path} is larger than {MAX_FILE} bytes.", "Give fewer tools.")
        text = data.decode("utf-8-sig")
        if form == "TOML":
            return tomllib.loads(text)
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The tools {path} cannot be read: {reason_of(error)}.",
            f"Give a file of definitions, or names among {', '.join(BUILT_IN)}.",
        ) from None
    except RecursionError:
        raise SettingsError(f"{path} is nested too deeply.", "Give a simpler schema.") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not valid {form}: {error}.", "Correct it.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"an object has {twice!r} twice")
    return dict(pairs)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")
