"""What the page and the engine ask of their parts. Protocols only; no torch at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.frame import Frame, LaneRecord
    from flarechat.engine.offer import Offer
    from flarechat.engine.plan import Plan
    from flarechat.engine.proposal import Proposal
    from flarechat.engine.slot import Lanes
    from flarechat.engine.window import Window
    from flarechat.protocol import HistoryTotals


class State(Protocol):
    """One kind of memory of all slots (KV rows, a recurrence, a window …)."""

    def keep(self, lanes: Lanes, emitted: Tensor) -> None:
        """Make the state after `emitted` [B] rows of the last pass the live one."""

    def hold(self, lanes: Lanes) -> None:
        """Hold what the next pass writes over and nothing else leads back to."""

    def rewind(self, lanes: Lanes) -> None:
        """Make what was held last the live state of these lanes again, so that another number of
        the rows of the pass since then can be kept."""

    def reusable(self, held: int, rows: int) -> int:
        """How many of a slot's first `rows` tokens can be kept of the `held` it has now.

        Rows stand on their own, so every prefix can be kept; a recurrence can only be kept whole.
        """

    def by_token(self, slot: int, start: int, end: int) -> dict[str, Tensor]:
        """Host: views of the rows that tokens `start` … `end` - 1 of a slot left, by name; those of
        fewer tokens are a beginning of them."""

    def beside(self, slot: int) -> dict[str, Tensor]:
        """Host: views of what a slot holds beside rows, which stands for all its consumed tokens
        together and for no fewer."""

    def snapshot(self, slot: int, rows: int) -> dict[str, Tensor]:
        """Host: a copy of what a slot holds of its `rows` consumed tokens, by name."""

    def restore(self, slot: int, rows: int, saved: Mapping[str, Tensor]) -> None:
        """Host: write back what `snapshot` of `rows` tokens gave, into any slot."""

    def copy(self, source: int, target: int, rows: int) -> None:
        """Host: give slot `target` what `source` holds of its first `rows` tokens, which it can
        keep (`reusable`)."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor it owns, by name, each with the slot dimension first."""

    @property
    def nbytes(self) -> int:
        """Bytes of those tensors."""


class HiddenRows(State, Protocol):
    """The hidden rows a draft head starts from: of all tokens, [S, rows, D], if it `keeps_all`,
    or only of the last one, [S, D]."""

    keeps_all: bool
    rows: Tensor

    def store(self, lanes: Lanes, hidden: Tensor, emitted: Tensor, plan: Plan) -> None:
        """Take hidden [B, W, D] of the last pass, of which `emitted` [B] rows count."""

    def last(self, lanes: Lanes) -> Tensor:
        """[B, 1, D]: the row of each lane's last consumed token; any row, if it has none."""


class Target(Protocol):
    """The model whose distribution is preserved, with the states of its slots.

    `repair_ms` is the time that went into running kept rows again, all rounds together. Passes of
    one that is `capturable` ask nothing of the host.
    """

    vocabulary: int
    capturable: bool

    @property
    def features(self) -> int:
        """F, how wide the hidden rows are that passes give."""

    @property
    def repair_ms(self) -> float: ...

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

    def amend(self, lanes: Lanes, inputs: Tensor, kept: Tensor, plan: Plan) -> None:
        """Of the last `verify`, whose plan is `judged`, commit only the first `kept` [B] rows of
        these lanes of it, whose inputs int64 [B, W] were these. They stand as before that pass."""

    def states(self) -> Sequence[State]:
        """The states it owns."""


class Drafter(Protocol):
    """What proposes. It answers all verbs, so nobody asks which one it is.

    One that `always_absorbs` cannot make up later for a pass that it was not shown.
    """

    @property
    def always_absorbs(self) -> bool:
        """Whether every plan must absorb, drafts or not."""

    def open(
        self, slot: int, request: str, prompt: Sequence[int], *, restored: int, history: bool,
        mtp: bool,
    ) -> None:  # fmt: skip
        """Host: a request with this prompt starts in `slot`.

        The caches already hold the state of its first `restored` tokens. `history` allows copies,
        `mtp` a learned drafter's drafts.
        """

    def stage(
        self, slot: int, limit: int, copied: int = 0, *, forced: Sequence[int] = (),
        legal: Callable[[Sequence[int]], int] | None = None,
    ) -> Offer:  # fmt: skip
        """Host, before a round: get up to `limit` drafts ready and say what they are.

        If the drafts of the slot in the one round under way are `copied` copies and nothing else,
        what is staged may go on from them, whatever becomes of them. Where tokens are `forced`, and
        no round is under way then, they come first, as sure drafts. Of copies behind them no more
        is staged than is `legal`, which says how many of some drafts, from the first, may stand.
        """

    def awaits(self, slot: int, copied: int = 0) -> bool:
        """Host: whether what it would stage depends on tokens of a round still under way."""

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        """Page: up to K drafts a lane, with the law that drew them."""

    def absorb(
        self, lanes: Lanes, inputs: Tensor, hidden: Tensor, emitted: Tensor, plan: Plan
    ) -> None:
        """Page, after a pass: write draft state from the true rows [B, W, ...]."""

    def amend(self, lanes: Lanes, hidden: Tensor, kept: Tensor, plan: Plan) -> None:
        """After `absorb` by a plan that is `judged`: of the true rows of these lanes, with this
        hidden [B, W, F], only the first `kept` [B] count. They stand as before that pass."""

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Host: these emitted tokens are validated and final."""

    def close(self, slot: int) -> tuple[HistoryTotals, HistoryTotals]:
        """Host: the request of `slot` ended; its look-ups of history and of its own context."""

    def copied(self, source: int, target: int) -> None:
        """Host: the states of slot `source` were copied to slot `target`, which opens next."""

    def reliable(self, slot: int, rows: int) -> bool:
        """Host: whether its own rows that go with a slot's first `rows` tokens were all made."""

    def restored(self, slot: int, rows: int) -> None:
        """Host: its states were written into `slot`, which opens next; the rows that go with the
        first `rows` tokens were made."""

    def states(self) -> Sequence[State]:
        """The states it owns."""


class DraftHead(Protocol):
    """A learned head: from a token's hidden state and the token after it, the one after that."""

    features: int
    vocabulary: Tensor | None

    def cache(self, slots: int, context: int) -> tuple[State, HiddenRows]:
        """Its own rows, which only the head reads, and the hidden rows it starts from."""

    def condense(self, hidden: Tensor) -> Tensor:
        """What the target exports, [B, W, F], to the hidden rows it starts from, [B, W, D]."""

    def forward(
        self, hidden: Tensor, tokens: Tensor, cache: Any, window: Window, extent: int,
        chain: dict[str, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Pairs of hidden [B, W, D] and the next tokens int64 [B, W] to outputs [B, W, D].

        What it keeps of them goes to the window's rows of `cache`; each sees the rows up to its
        position, of the first `extent`. The steps of one chain of drafts share the dict `chain`,
        empty at first.
        """

    def write(
        self, hidden: Tensor, tokens: Tensor, cache: Any, window: Window, extent: int
    ) -> None:
        """Keep of these pairs what `forward` keeps; nobody asks for their outputs."""

    def logits(self, output: Tensor) -> Tensor:
        """Outputs [B, W, D] to logits [B, W, R] of `vocabulary` int64 [R], or of all tokens."""


class Executor(Protocol):
    """How the page is run, nothing else. Up to `depth` rounds may be under way: played, and their
    frames not read. What is asked for happens in the order in which it was asked for."""

    name: str

    @property
    def depth(self) -> int:
        """1 where `play` returns what has happened, 2 where it returns what will."""

    def play(self, lanes: Lanes, plan: Plan) -> Frame:
        """Run one round on what was staged for it."""

    def prefill(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> None:
        """Run one prefill chunk: the target's state, then the drafter's. `inputs` is the host's."""

    def copy(self, source: int, target: int, rows: int) -> None:
        """Give slot `target` the states of the first `rows` tokens of slot `source`."""

    def heard(self, lanes: int) -> tuple[Tensor, Tensor]:
        """Copies of hidden [B, F] and logits [B, V] of the pending tokens of the B lanes of the
        round that was asked for last, and nothing since."""

    def recall(self, lanes: Lanes, plan: Plan, hidden: Tensor, logits: Tensor) -> Frame:
        """Run a round of one lane and width 1 whose pass is already known: it gave hidden [F] and
        logits [V], and its lane has the state that it left."""

    def redraw(self, slot: int, row: int, legal: bytes) -> int:
        """Host: a token for row `row` of the last round's lane of this slot, from its law as masked
        by the bits of `legal` (see `redraw.redrawn`). Changes nothing; the row was emitted."""

    def amend(self, slot: int, kept: int, token: int | None = None) -> LaneRecord:
        """Host: the last round, whose plan was `judged` and whose frame was read, ends in this slot
        after `kept` of the tokens that it now has, the last of them replaced by `token` if given.

        Columns and all states are then as plain decoding of these tokens leaves them. Returns the
        lane's record as it now is. May be asked for again, of fewer; of 0 only where the round was
        not recalled.
        """

    def wait(self) -> None:
        """Host: until all that was asked for has happened."""
