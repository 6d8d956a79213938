"""The settings a user may change while chatting: their names, forms and checks.

Owns the table behind the settings screen, /set and /show. A change makes a new Settings, so an
impossible value is refused by Settings itself and nothing is half applied.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flarechat.config import Settings
from flarechat.errors import SettingsError
from flarechat.protocol import ACCEPTANCES, Sampling
from flarechat.ui.meter import why_off

THEMES = ("auto", "dark", "light")
ON_OFF = ("on", "off")
SPEC_MODES = ("auto", "on", "off")


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting: its name in Settings, its label, and how its text is read.

    `options` lists the legal words of a closed choice; an empty text means "not set" where the
    model has a recommendation.
    """

    name: str
    label: str
    read: Callable[[str], Any]
    options: tuple[str, ...] = ()
    optional: bool = False


def _switch(text: str) -> bool:
    return {"on": True, "off": False}[text.lower()]


CHOICES = (
    Choice("temperature", "Temperature (0 = most likely)", float, optional=True),
    Choice("top_k", "Top-k (0 = off)", int, optional=True),
    Choice("top_p", "Top-p", float, optional=True),
    Choice("min_p", "Min-p", float, optional=True),
    Choice("repetition_penalty", "Repetition penalty", float, optional=True),
    Choice("presence_penalty", "Presence penalty", float, optional=True),
    Choice("frequency_penalty", "Frequency penalty", float, optional=True),
    Choice("seed", "Seed (empty = random)", int, optional=True),
    Choice("max_tokens", "Longest answer, tokens", int),
    Choice("thinking", "Thinking", _switch, ON_OFF),
    Choice("mtp_draft_tokens", "Draft tokens, 0 to 7", int),
    Choice("mtp_adaptive_verification", "Adaptive width", _switch, ON_OFF),
    Choice("mtp", "MTP drafts", _switch, ON_OFF),
    Choice("history_drafts", "History drafts", _switch, ON_OFF),
    Choice("acceptance", "Acceptance", str, ACCEPTANCES),
    Choice("theme", "Theme", str, THEMES),
    Choice("system", "System prompt", str),
)


def text_of(settings: Settings, choice: Choice) -> str:
    """The setting as the user would write it; "" when it is not set."""
    value = getattr(settings, choice.name)
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None else str(value)


def changed(settings: Settings, name: str, text: str) -> Settings:
    """Settings with one choice read from `text`."""
    choice = _named(name)
    if not text and choice.optional:
        return _with(settings, choice.name, None)
    try:
        value = choice.read(text)
    except (ValueError, KeyError):
        allowed = ", ".join(choice.options) if choice.options else "a number"
        raise SettingsError(f"{choice.name} {text!r} is not legal.", f"Give {allowed}.") from None
    if choice.options and choice.name != "theme" and text.lower() not in choice.options:
        raise SettingsError(
            f"{choice.name} {text!r} is not legal.", f"Give {', '.join(choice.options)}."
        )
    return _with(settings, choice.name, value)


def _with(settings: Settings, name: str, value: Any) -> Settings:
    return dataclasses.replace(settings, **{name: value})


def _named(name: str) -> Choice:
    wanted = name.replace("-", "_").lower()
    for choice in CHOICES:
        if choice.name == wanted:
            return choice
    names = [choice.name for choice in CHOICES]
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(names)}."
    raise SettingsError(f"{name} is not a parameter.", hint)


def with_spec(settings: Settings, mode: str) -> Settings:
    """Settings with speculation adaptive ("auto"), at a fixed width ("on") or off."""
    if mode not in SPEC_MODES:
        raise SettingsError(f"/spec {mode} is unknown.", f"Give {', '.join(SPEC_MODES)}.")
    drafts = settings.mtp_draft_tokens or Settings().mtp_draft_tokens
    return dataclasses.replace(
        settings,
        mtp_draft_tokens=0 if mode == "off" else drafts,
        mtp_adaptive_verification=mode != "on",
    )


def spec_text(settings: Settings, mtp_off: str) -> str:
    """Speculation in words; `mtp_off` says why no MTP head drafts, "" when one does."""
    reason = why_off(settings.speculation(), mtp_off)
    if reason:
        wanted = "/set history_drafts on" if settings.mtp_draft_tokens else "/spec auto"
        return f"speculation off: {reason} ({wanted} turns it on)"
    width = settings.mtp_draft_tokens + 1
    mode = "adaptive width up to" if settings.mtp_adaptive_verification else "fixed width"
    mtp = mtp_off if "MTP" in mtp_off else f"MTP {mtp_off or 'on'}"
    history = "on" if settings.history_drafts else "off"
    return (
        f"speculation on: {mode} {width}, {mtp}, history drafts {history}, "
        f"acceptance {settings.acceptance}"
    )


def parameters_text(settings: Settings, recommended: Sampling | None) -> str:
    """Every parameter with the value in force and where it comes from."""
    rows = []
    for choice in CHOICES:
        if choice.name in ("theme", "system"):
            continue
        value, origin = text_of(settings, choice), ""
        if not value and recommended is not None:
            inherited = getattr(recommended, choice.name)
            value = "random" if inherited is None else f"{inherited:g}"
            origin = "  (model)"
        rows.append(f"{choice.name:26} {value or 'model'}{origin}")
    return "\n".join(rows)
