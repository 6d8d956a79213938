"""Judges: what the host asks whether the tokens of a round may stand.

A round is verified as if nothing judged it. A judge then says how many of its tokens stand, and
which ones the next may be drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first `kept` tokens stand as they are.

    Where fewer do than were judged, the next is drawn anew from the tokens whose bits are set in
    `legal` (token i is bit i % 8 of byte i // 8; there are as many as logits), or, where that is
    None, the round ends there. The answer has `ended` with the last token that stands. Where no
    token behind these can be judged, `fault` says why, in a sentence.
    """

    kept: int
    legal: bytes | None = None
    ended: bool = False
    fault: str = ""


class Judge(Protocol):
    """Judges the tokens of one answer, in their order."""

    def judge(self, tokens: Sequence[int]) -> Verdict:
        """What becomes of these tokens, behind those that were kept. Changes nothing."""

    def kept(self, tokens: Sequence[int]) -> bool:
        """These tokens are final; whether the answer has ended with the last of them."""
