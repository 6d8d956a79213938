"""Bookings: which answer has which slot, and the state it begins and ends with.

Owns the binding of slots to answers and where the state they begin with comes from: a prompt that
any slot, or a snapshot, has the beginning of is not computed again. Knows no queue and no round.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from flarechat.engine.answer import Answer
from flarechat.engine.contracts import Drafter, Executor
from flarechat.engine.keeper import Keeper
from flarechat.engine.residents import Residents
from flarechat.engine.slot import SlotPool


class Bookings:
    """The slots of one pool. `moving` are those that rounds play: they hold more than is known."""

    def __init__(
        self, pool: SlotPool, drafter: Drafter, executor: Executor, keeper: Keeper
    ) -> None:
        self.pool, self.drafter, self.executor, self.keeper = pool, drafter, executor, keeper
        self.residents = Residents(pool.slots, keeper.reusable)

    def claim(
        self, free: Collection[int], prompt: Sequence[int], moving: Collection[int]
    ) -> tuple[int, int, str]:
        """A free slot, how many tokens of the prompt it has or is given, and by what: a slot, its
        own or another, memory or disk; "" for none."""
        slot, restored = self.residents.claim(free, prompt)
        source, rows = self.residents.source(slot, prompt, moving)
        found = self.keeper.search(prompt[:-1], max(restored, rows))
        if found is not None:
            self.residents.forget(slot)
            self.keeper.restore(slot, found)
            self.residents.hold(slot, prompt[: found.rows])
            return slot, found.rows, found.place
        if rows > restored:
            self._copy(source, slot, prompt[:rows])
            return slot, rows, "slot"
        return slot, restored, "slot" if restored else ""

    def begin(self, answer: Answer) -> None:
        """Bind slot and drafter to an answer whose restored tokens are in the caches."""
        speculation = answer.request.speculation
        self.bind(answer, answer.restored)
        self.drafter.open(
            answer.slot, answer.request.id, answer.prompt, restored=answer.restored,
            history=speculation.copies, mtp=speculation.learned,
        )  # fmt: skip

    def bind(self, answer: Answer, restored: int) -> None:
        """Write the slot's columns for the answer's tokens as they now stand; those of an answer
        that goes on count as generated."""
        begun = len(answer.continued)
        self.pool.open(
            answer.slot, answer.prompt[: len(answer.prompt) - begun],
            (*answer.continued, *answer.generated), restored=restored,
            sampling=answer.request.sampling, seed=answer.seed, match=answer.match,
            budget=answer.budget + begun, eos=sorted(answer.eos),
        )  # fmt: skip

    def look_again(self, answer: Answer, moving: Collection[int]) -> None:
        """Before anything of a prompt is computed: another slot may have more of it by now."""
        if answer.prefilled != answer.restored:
            return
        source, rows = self.residents.source(answer.slot, answer.prompt, moving)
        if rows > answer.prefilled:
            self._branch(answer, source, rows)

    def share(self, done: Answer, other: Answer) -> None:
        """The prompt of `done` was computed: whoever waits for the same has it copied, while its
        state stands at its end."""
        prefix = done.prompt[:-1]
        same = len(other.prompt) > len(prefix) and other.prompt[: len(prefix)] == prefix
        if same and other.prefilled < len(prefix):
            self._branch(other, done.slot, len(prefix))

    def settle(self, answer: Answer) -> None:
        """The slot's state ends where the answer's tokens end: its rounds were amended to that."""
        self.residents.hold(answer.slot, answer.tokens[:-1])

    def take(self, answer: Answer) -> None:
        """Keep a snapshot of what the answer's slot holds, the state after tokens all final; the
        answer says which node has its end, if that is kept on disk."""
        held = self.residents.held(answer.slot)
        kept = self.keeper.take(
            answer.slot, held, private=answer.request.private, opening=answer.opening
        )
        answer.snapshot = kept or answer.snapshot

    def remember(self, answer: Answer, hidden: Tensor, logits: Tensor, *, whole: bool) -> None:
        """The answer's first round was read: keep what its pass gave for the pending token. The
        slot's state is `whole` if it stands right behind that token."""
        self.keeper.remember(
            answer.slot, answer.prompt, hidden, logits, whole=whole,
            private=answer.request.private, opening=answer.opening,
        )  # fmt: skip

    def recall(self, answer: Answer) -> tuple[Tensor, Tensor] | None:
        """What a pass over the pending token of a prompt that was computed gave before."""
        return self.keeper.recall(answer.slot, answer.prompt)

    def _branch(self, answer: Answer, source: int, rows: int) -> None:
        """Begin an answer anew with the first `rows` tokens of its prompt copied from a slot."""
        self._copy(source, answer.slot, answer.prompt[:rows])
        answer.restored = answer.prefilled = rows
        self.begin(answer)

    def _copy(self, source: int, slot: int, tokens: Sequence[int]) -> None:
        """Give a slot the state of `tokens`, which another has."""
        self.residents.forget(slot)
        self.executor.copy(source, slot, len(tokens))
        self.drafter.copied(source, slot)
        self.residents.hold(slot, tokens)
