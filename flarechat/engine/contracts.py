"""What the page and the engine ask of their parts. Protocols only; no torch at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.frame import Frame
    from flarechat.engine.offer import Offer
    from flarechat.engine.plan import Plan
    from flarechat.engine.proposal import Proposal
    from flarechat.engine.slot import Lanes
    from flarechat.engine.state.hidden import HiddenState
    from flarechat.engine.state.kv import KVState
    from flarechat.protocol import HistoryTotals


class State(Protocol):
    """One kind of memory of all slots (KV rows, a recurrence, a window …)."""

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Make the state after `emitted` [B] rows of the last pass the live one."""

    def reusable(self, rows: int) -> int:
        """How many of a slot's first `rows` tokens can be kept when the rest is dropped."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor it owns, by name, each with the slot dimension first."""

    @property
    def nbytes(self) -> int:
        """Bytes of those tensors."""


class Target(Protocol):
    """The model whose distribution is preserved, with the states of its slots."""

    vocabulary: int

    def verify(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """One pass over inputs int64 [B, W]: hidden [B, W, F] and logits [B, W, V].

        `hidden` is what a draft head reads: raw, before the final norm, F features wide.
        """

    def prefill(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> Tensor:
        """Write the state of inputs int64 [B, T] and return hidden [B, T, F]; no logits.

        A chunk's plan has T - 1 draft tokens, so that its width is T.
        """

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Commit the first `emitted` [B] rows of the last `verify`."""

    def states(self) -> Sequence[State]:
        """The states it owns."""


class Drafter(Protocol):
    """What proposes. It answers all verbs, so nobody asks which one it is."""

    def open(
        self, slot: int, request: str, prompt: Sequence[int], *, restored: int, history: bool,
        mtp: bool,
    ) -> None:  # fmt: skip
        """Host: a request with this prompt starts in `slot`.

        The caches already hold the state of its first `restored` tokens. `history` allows copies,
        `mtp` a learned drafter's drafts.
        """

    def stage(self, slot: int, limit: int) -> Offer:
        """Host, before a round: get up to `limit` drafts ready and say what they are."""

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        """Page: up to K drafts a lane, with the law that drew them."""

    def absorb(
        self, lanes: Lanes, inputs: Tensor, hidden: Tensor, emitted: Tensor, plan: Plan
    ) -> None:
        """Page, after a pass: write draft state from the true rows [B, W, ...]."""

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Host: these emitted tokens are validated and final."""

    def close(self, slot: int) -> tuple[HistoryTotals, HistoryTotals]:
        """Host: the request of `slot` ended; its look-ups of history and of its own context."""

    def states(self) -> Sequence[State]:
        """The states it owns."""


class DraftHead(Protocol):
    """A learned head: from a token's hidden state and the token after it, the one after that."""

    features: int
    vocabulary: Tensor | None

    def cache(self, slots: int, context: int) -> tuple[KVState, HiddenState]:
        """Room for its keys and values and for the hidden rows it starts from."""

    def condense(self, hidden: Tensor) -> Tensor:
        """What the target exports, [B, W, F], to the hidden rows it starts from, [B, W, D]."""

    def forward(
        self, hidden: Tensor, tokens: Tensor, kv: KVState, slots: Sequence[int], rows: Tensor,
        positions: Tensor, extent: int,
    ) -> Tensor:  # fmt: skip
        """Pairs of hidden [B, W, D] and the next tokens int64 [B, W] to outputs [B, W, D].

        Their keys and values go to `rows` [B, W]; each sees the rows up to its position [B, W].
        """

    def logits(self, output: Tensor) -> Tensor:
        """Outputs [B, W, D] to logits [B, W, R] of `vocabulary` int64 [R], or of all tokens."""


class Executor(Protocol):
    """How the page is run, nothing else."""

    name: str

    def play(self, lanes: Lanes, plan: Plan) -> Frame:
        """Run one round."""

    def prefill(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> None:
        """Run one prefill chunk: the target's state, then the drafter's."""
