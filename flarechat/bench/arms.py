"""The ways of drafting that a bench compares. Owns what each arm's name means.

    off               K = 0: plain decoding, the baseline of every ratio
    fixed             K drafts a round whenever they are there, from every drafter
    adaptive          the controller picks the width; learned drafts only, no copies
    adaptive+history  the same with copies: from the request's own text and from history

`adaptive` leaves both copying drafters out, since one switch governs them: what it measures is
the model's own draft head. A model without one cannot be offered anything there, and the report
says so instead of printing a ratio.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from flarechat.errors import SettingsError
from flarechat.protocol import Speculation

BASELINE = "off"
NAMES = ("off", "fixed", "adaptive", "adaptive+history")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One named way of drafting."""

    name: str
    speculation: Speculation

    @property
    def learned_only(self) -> bool:
        """Whether nothing but a learned drafter could offer drafts here."""
        return self.speculation.draft_tokens > 0 and not self.speculation.history_drafts


def parse_arms(text: str, base: Speculation) -> tuple[Arm, ...]:
    """The arms named in `text`, joined by commas; `base` gives K, MTP and the acceptance rule."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for index, name in enumerate(names or [""]):
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            offer = f"Did you mean {near[0]}?" if near else f"Use {', '.join(NAMES)}."
            raise SettingsError(f"--arms {name or repr(name)} is unknown.", offer)
        if name in names[:index]:
            raise SettingsError(f"--arms names {name} twice.", "Name every arm once.")
    return tuple(Arm(name=name, speculation=_speculation(name, base)) for name in names)


def _speculation(name: str, base: Speculation) -> Speculation:
    if name == BASELINE:
        return replace(base, draft_tokens=0, adaptive=False, history_drafts=False, mtp=False)
    if base.draft_tokens == 0:
        raise SettingsError(
            f"--arms {name} needs drafts, but --mtp-draft-tokens is 0.", "Give 1 to 7."
        )
    if name == "fixed":
        return replace(base, adaptive=False, history_drafts=True)
    return replace(base, adaptive=True, history_drafts=name == "adaptive+history")
