"""The ways of drafting that a bench compares. Owns what each arm's name means.

    off               K = 0: plain decoding without a head, the baseline of every ratio
    fixed-N           the MTP head drafts N tokens in every round; no copies
    adaptive          the controller picks the width; the MTP head alone drafts
    adaptive+history  the same with copies: from the request's own text and from history

`fixed` names fixed-1 to fixed-7, `all` every arm. An arm that the MTP head alone drafts in is left
out where none is loaded: its rounds would be plain ones.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from flarechat.errors import SettingsError
from flarechat.protocol import MAX_DRAFT_TOKENS, Speculation

BASELINE = "off"
FIXED = tuple(f"fixed-{count}" for count in range(1, MAX_DRAFT_TOKENS + 1))
NAMES = (BASELINE, *FIXED, "adaptive", "adaptive+history")
GROUPS = {"fixed": FIXED, "all": NAMES}
DEFAULT = "all"


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
    """The arms named in `text`, joined by commas; `base` gives K where the name does not, MTP and
    the acceptance rule.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    names = [name for word in words or [""] for name in GROUPS.get(word, (word,))]
    for index, name in enumerate(names):
        if name not in NAMES:
            near = difflib.get_close_matches(name, (*NAMES, *GROUPS), n=1)
            offer = f"Did you mean {near[0]}?" if near else f"Use {', '.join((*NAMES, *GROUPS))}."
            raise SettingsError(f"--arms {name or repr(name)} is unknown.", offer)
        if name in names[:index]:
            raise SettingsError(f"--arms names {name} twice.", "Name every arm once.")
    return tuple(Arm(name=name, speculation=_speculation(name, base)) for name in names)


def _speculation(name: str, base: Speculation) -> Speculation:
    if name == BASELINE:
        return replace(base, draft_tokens=0, adaptive=False, history_drafts=False, mtp=False)
    if name in FIXED:
        count = FIXED.index(name) + 1
        return replace(base, draft_tokens=count, adaptive=False, history_drafts=False)
    if base.draft_tokens == 0:
        raise SettingsError(
            f"--arms {name} needs drafts, but --mtp-draft-tokens is 0.", "Give 1 to 7."
        )
    return replace(base, adaptive=True, history_drafts=name == "adaptive+history")
