"""Where settings are read from: a file, the environment, flags; each a layer of values.

Owns how names and values are written in each place, and the sentence for one that is wrong there.
Knows the settings only as names with plain types; which layer wins is for config to say.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flarechat.errors import SettingsError, reason_of

ENV_PREFIX = "FLARECHAT_"
# Variables that something else reads.
_NO_SETTINGS = {"home", "sampler", "cpu_kernels", "cpu_isa", "test_cache", "update"}
_SWITCHES = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip

Kinds = Mapping[str, type]
# Of each setting its value, and where it is set: "" for a flag.
Layer = dict[str, tuple[Any, str]]


def flag_of(key: str) -> str:
    """The command-line flag of a setting."""
    return "--no-mtp" if key == "mtp" else "--" + key.replace("_", "-")


def of_file(path: Path, kinds: Kinds) -> Layer:
    """The settings of one TOML file with their origins; a file that is not there sets nothing."""
    try:
        text = path.read_text("utf-8")
        table = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The settings file {path} cannot be read: {reason_of(error)}.",
            "Make it readable or remove it.",
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            f"The settings file {path} is not valid TOML: {error}.", "Correct it or remove it."
        ) from None
    return dict(_known(path, text, key, value, kinds) for key, value in table.items())


def _known(
    path: Path, text: str, key: str, value: Any, kinds: Kinds
) -> tuple[str, tuple[Any, str]]:
    """One entry of a file under its field name; an unknown key is refused with the nearest."""
    name, origin = key.replace("-", "_"), f"{path}{_line_of(text, key)}"
    setting, negated = _meant(name, kinds)
    if setting:
        return setting, (not value if negated and isinstance(value, bool) else value, origin)
    raise SettingsError(f"{origin}: {key!r} is not a setting.", _remedy(name, kinds))


def _meant(name: str, kinds: Kinds) -> tuple[str, bool]:
    """The setting that a name stands for, "" for none, and whether the name says no to it."""
    switch = name.removeprefix("no_")
    if name in kinds:
        return name, False
    return (switch, True) if kinds.get(switch) is bool else ("", False)


def _remedy(name: str, kinds: Kinds, form: Callable[[str], str] = str) -> str:
    """What to do about an unknown name; `form` writes the nearest as it is written there."""
    known = [*kinds, *(f"no_{key}" for key, kind in kinds.items() if kind is bool)]
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"Did you mean {form(near[0])}?"
    return "Remove it; `flarechat --help` lists the settings."


def _line_of(text: str, key: str) -> str:
    """ ", line N" of a key's first appearance, or nothing when it is written in another way."""
    pattern = re.compile(rf"""\s*\[?\s*["']?{re.escape(key)}["']?\s*[=\].]""")
    lines = (n for n, line in enumerate(text.splitlines(), start=1) if pattern.match(line))
    number = next(lines, None)
    return f", line {number}" if number else ""


def of_flags(flags: Mapping[str, object], kinds: Kinds) -> Layer:
    """The flags that were given."""
    return {
        key: (_parsed(value, kinds[key]) if isinstance(value, str) else value, "")
        for key, value in flags.items()
        if value is not None
    }


def of_environment(env: Mapping[str, str], kinds: Kinds) -> Layer:
    """The settings among the environment's variables, parsed from their text. Where one says yes
    and another no to the same, no wins.
    """
    found: Layer = {}
    for variable in sorted(env):
        name = variable.removeprefix(ENV_PREFIX).lower()
        if not variable.startswith(ENV_PREFIX) or name in _NO_SETTINGS:
            continue
        setting, negated = _meant(name, kinds)
        if not setting:
            hint = _remedy(name, kinds, lambda near: ENV_PREFIX + near.upper())
            raise SettingsError(f"The variable {variable} is not a setting.", hint)
        value = _parsed(env[variable], kinds[setting])
        if not negated:
            found.setdefault(setting, (value, variable))
        else:
            found[setting] = (not value if isinstance(value, bool) else value, variable)
    return found


def _parsed(text: str, kind: type) -> Any:
    """`text` as `kind`, or unchanged when it is none, for `typed` to refuse."""
    if kind is bool:
        return _SWITCHES.get(text.strip().lower(), text)
    if kind is tuple and text.startswith("["):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return (text,)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of texts",
}


def typed(key: str, value: Any, kind: type, origin: str) -> Any:
    """`value` in the type of its setting; anything else is refused, naming where it is set."""
    if kind is tuple:
        parts = (value,) if isinstance(value, str) else value
        if isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts):
            return tuple(parts)
    elif kind in (int, float) and type(value) is int and value.bit_length() > 63:
        digits = str(value) if value.bit_length() < 128 else "of that many digits"
        raise SettingsError(
            f"{flag_of(key)} {digits} does not fit 64 bits.", "Give a smaller number."
        )
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif type(value) is kind:
        return value
    if origin:
        what, remedy = f"{key} = {value!r} in {origin}", "Correct it or remove it."
    else:
        what, remedy = f"{flag_of(key)} {value}", "`flarechat --help` says what it takes."
    raise SettingsError(f"{what} is not {_WORDS[kind]}.", remedy)
