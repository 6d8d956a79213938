"""Residents: which tokens' state each slot's caches hold, so that a prefix is not computed twice.

Owns the token list of every slot and the choice of a slot for a new prompt. Knows no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

_PIECE = 256


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest shared beginning."""
    left, right = tuple(left), tuple(right)
    most = min(len(left), len(right))
    # Whole pieces are compared at once; only the one that differs is gone through.
    pieces = (slice(at, at + _PIECE) for at in range(0, most, _PIECE))
    start = next((piece.start for piece in pieces if left[piece] != right[piece]), most)
    return next((at for at in range(start, most) if left[at] != right[at]), most)


class Residents:
    """Tokens by slot.

    `reusable(held, rows)` is how much of a shared prefix of `rows` tokens the states can keep, of
    the `held` tokens that a slot has.
    """

    def __init__(self, slots: int, reusable: Callable[[int, int], int]) -> None:
        self._tokens: list[tuple[int, ...]] = [()] * slots
        self._used = [0] * slots
        self._clock = 0
        self.reusable = reusable

    def claim(self, free: Collection[int], tokens: Sequence[int]) -> tuple[int, int]:
        """A free slot for `tokens`, and how many of them it restores.

        The slot that saves most counts: tokens that need no computing against, at half their
        weight, tokens of another text that would be overwritten; then the least recently used.
        The last token is never restored, it stays pending.
        """
        before = tuple(tokens[:-1])
        kept = {slot: self._kept(slot, before) for slot in free}

        def saved(slot: int) -> float:
            return kept[slot] - (len(self._tokens[slot]) - kept[slot]) / 2

        slot = max(free, key=lambda s: (saved(s), -self._used[s], -s))
        self.hold(slot, tokens[: kept[slot]])
        return slot, kept[slot]

    def _kept(self, slot: int, tokens: Sequence[int], *, moving: bool = False) -> int:
        own = self._tokens[slot]
        return self.reusable(len(own) + moving, common_prefix(own, tokens))

    def source(
        self, slot: int, tokens: Sequence[int], moving: Collection[int] = ()
    ) -> tuple[int, int]:
        """The other slot that can give most of `tokens` to `slot`, and how many.

        Slots that are `moving` have gone on past what they are said to hold: all of it is there
        still, but not the state that stood at its end.
        """
        others = [o for o, own in enumerate(self._tokens) if o != slot and own]
        before = tuple(tokens[:-1]) if others else ()
        given = {o: self._kept(o, before, moving=o in moving) for o in others}
        best = max(others, key=lambda other: given[other], default=slot)
        return best, given.get(best, 0)

    def hold(self, slot: int, tokens: Sequence[int]) -> None:
        """The slot's caches now hold exactly these tokens."""
        self._clock += 1
        self._used[slot] = self._clock
        self._tokens[slot] = tuple(tokens)

    def held(self, slot: int) -> list[int]:
        """The tokens whose state the slot's caches hold."""
        return list(self._tokens[slot])

    def forget(self, slot: int) -> None:
        """Whatever the slot's caches hold is not to be trusted."""
        self.hold(slot, ())
