"""How a prompt is got ready, in figures and in words: what was restored, what is computed.

Knows no engine and no widget.
"""

from __future__ import annotations

from dataclasses import dataclass

from flarechat.ui.format import count, rate

PLACES = {"slot": "a slot", "memory": "memory", "disk": "disk"}


@dataclass(frozen=True, slots=True)
class Prefill:
    """How a prompt of `total` tokens is got ready: `restored` of them were there already, in
    `place` (slot, memory or disk), and `computed` of the others are done.
    """

    total: int = 0
    restored: int = 0
    place: str = ""
    computed: int = 0

    @property
    def fresh(self) -> int:
        """Tokens that have to be computed."""
        return self.total - self.restored


def prompt_text(prompt: Prefill, speed: float) -> str:
    """How a prompt is got ready, in a sentence; "" before anything is known of it."""
    if not prompt.total:
        return ""
    parts = []
    if prompt.restored:
        parts.append(f"{prompt.restored:,} restored from {PLACES.get(prompt.place, 'before')}")
    if prompt.fresh:
        done = "" if prompt.computed >= prompt.fresh else f"{prompt.computed:,} of "
        parts.append(f"{done}{prompt.fresh:,} computed")
    said = ", ".join(parts) + (f", {rate(speed)} tok/s" if speed and prompt.fresh else "")
    return f"Prompt of {prompt.total:,} tokens: {said}"


def prompt_figures(prompt: Prefill) -> str:
    """The same in few words: 1.2k slot + 60 new."""
    if not prompt.total:
        return ""
    restored = f"{count(prompt.restored)} {prompt.place or 'kept'} + " if prompt.restored else ""
    return f"prompt {restored}{count(prompt.fresh)} new"
