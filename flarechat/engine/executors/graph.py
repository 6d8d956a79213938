"""The graph executor: every plan captured at start, and a round played by one replay.

Owns the captured rounds, prompt pieces and copies between slots, and the two frames that take
turns. What a round is told (its lanes' slots, staged drafts) reaches the device in the staging
block; all else a captured pass reads is where it was left. Nothing is compiled, captured or
allocated once `prepare` is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flarechat.engine.executors.capture import Capture, CudaCapture, Replay
from flarechat.engine.executors.catalogue import Captured, Catalogue
from flarechat.engine.executors.eager import prefill_chunk
from flarechat.engine.executors.last import LastRound
from flarechat.engine.executors.passes import Overheard, Recalled
from flarechat.engine.frame import HEADER, Frame, LaneRecord, Logprobs, token_logprobs
from flarechat.engine.plan import LANE_COUNTS, Plan
from flarechat.engine.round import play_round
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.engine.staging import Block, Staging
from flarechat.protocol import MAX_DRAFT_TOKENS

if TYPE_CHECKING:
    from flarechat.engine.contracts import Drafter, State, Target

Progress = Callable[[str, int, int], None]
_WIDEST = HEADER + MAX_DRAFT_TOKENS + 1


class FixedLanes(Lanes):
    """Lanes whose slots are wherever `index` int64 [B] says when the work is replayed."""

    def __init__(self, pool: SlotPool, index: Tensor, *, prefilling: bool = False) -> None:
        self.pool, self.prefilling = pool, prefilling
        self._index = index

    @property
    def index(self) -> Tensor:
        """int64 [B]: the slots' numbers on the device."""
        return self._index

    @property
    def slots(self) -> tuple[int, ...]:  # type: ignore[override]
        """The numbers as they stand, for work that is not really captured."""
        assert self._index.device.type == "cpu", "a captured pass knows no slot numbers"
        return tuple(self._index.tolist())

    def for_prefill(self) -> Lanes:
        """The same slots, prefilling."""
        return FixedLanes(self.pool, self._index, prefilling=True)

    def __len__(self) -> int:
        return self._index.shape[0]


@dataclass(frozen=True, slots=True)
class Round:
    """A captured round: its plan, its replay, the record [B, HEADER + W] that it leaves, what its
    pass was given and gave (inputs [B, W], hidden [B, W, F], logits [B, W, V]) until something else
    is replayed, and the host's two frames of the record's shape."""

    plan: Plan
    replay: Replay
    record: Tensor
    passed: tuple[Tensor, Tensor, Tensor]
    frames: tuple[Tensor, Tensor]


class GraphExecutor:
    """Replays the plans of a catalogue over one slot pool."""

    name, depth = "graph", 2

    def __init__(
        self, target: Target, drafter: Drafter, staging: Staging, pool: SlotPool,
        catalogue: Catalogue, capture: Capture | None = None,
    ) -> None:  # fmt: skip
        self.target, self.drafter, self.staging = target, drafter, staging
        self.pool, self.catalogue = pool, catalogue
        self.capture = capture = capture or CudaCapture(pool.device)
        self._slots, slots = staging.columns(1)
        self._index = {n: slots[:n, 0] for n in LANE_COUNTS if n <= pool.slots}
        self._way, way = staging.columns(2)
        self._from_to = way[0]
        self._piece = Block(1 + max(catalogue.pieces(catalogue.context)), pool.device)
        self._landings = [capture.landing(max(LANE_COUNTS) * _WIDEST) for _ in range(2)]
        self._marks, self._turn = [capture.mark() for _ in range(2)], 0
        self._rounds: dict[Captured, Round] = {}
        self._pieces: dict[Captured, Replay] = {}
        self._copying: Replay | None = None
        self._last: LastRound | None = None

    # Once, at start.

    @torch.inference_mode()
    def prepare(self, progress: Progress) -> None:
        """Compile and capture everything, the largest first; `progress` hears (stage, done, total).

        All slots must be idle: rounds then write scratch rows alone, and what the pieces of a
        prompt write in the first slot is put back.
        """
        wanted = self.catalogue.all()
        saved = self._saved()
        self._slots[:, 0] = range(self.pool.slots)
        self._piece.host[:] = 0
        self.staging.upload()
        self._piece.upload()
        tried = [self._tried(captured) for captured in wanted]
        self.capture.compile(tried, lambda done, total: progress("compiling", done, total))
        with self.capture.warm():
            for done, work in enumerate(tried):
                progress("kernels", done, len(wanted))
                work()
        for done, captured in enumerate(wanted, start=1):
            self._capture(captured)
            self.pool.consumed.zero_()
            progress("graphs", done, len(wanted))
        if self.pool.slots > 1:
            self._copying, _ = self.capture.capture(self._copy_slot)
        for state, rows, held in saved:
            state.restore(0, rows, held)
        self.capture.wait()

    def _saved(self) -> list[tuple[State, int, dict[str, Tensor]]]:
        """What the first slot has in the rows that a piece of a prompt writes."""
        rows = self._piece.host.size - 1
        return [(state, rows, state.snapshot(0, rows)) for state in self._states()]

    def _states(self) -> Sequence[State]:
        return (*self.target.states(), *self.drafter.states())

    def _work(self, captured: Captured) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: self._prefill(captured) if captured.prefill else self._play(captured)

    def _tried(self, captured: Captured) -> Callable[[], None]:
        def work() -> None:
            self._work(captured)()
            self.pool.consumed.zero_()

        return work

    def _play(self, captured: Captured) -> tuple[Tensor, ...]:
        """The page over the lanes that are staged: its record, and its pass's inputs, hidden and
        logits."""
        target = Overheard(self.target)
        lanes = FixedLanes(self.pool, self._index[captured.lanes])
        frame = play_round(target, self.drafter, lanes, captured.plan)  # type: ignore[arg-type]
        return frame.record, *target.passed

    def _prefill(self, captured: Captured) -> tuple[()]:
        """The piece of a prompt that is staged."""
        index, inputs = self._piece.device[:1], self._piece.device[1 : 1 + captured.plan.width]
        lanes = FixedLanes(self.pool, index, prefilling=True)
        prefill_chunk(self.target, self.drafter, lanes, inputs[None], captured.plan)
        return ()

    def _copy_slot(self) -> tuple[()]:
        """All that one slot holds, to another."""
        source, target = self._from_to[:1], self._from_to[1:]
        for state in self._states():
            for tensor in state.tensors().values():
                tensor.index_copy_(0, target, tensor.index_select(0, source))
        return ()

    def _capture(self, captured: Captured) -> None:
        replay, out = self.capture.capture(self._work(captured))
        if captured.prefill:
            self._pieces[captured] = replay
            return
        record, *passed = out
        frames = [landing[: record.numel()].view(record.shape) for landing in self._landings]
        inputs, hidden, logits = map(self.capture.borrowed, passed)
        self._rounds[captured] = Round(
            captured.plan, replay, record, (inputs, hidden, logits), (frames[0], frames[1])
        )

    # From then on.

    def play(self, lanes: Lanes, plan: Plan) -> Frame:
        """Replay the round that stands for the plan. Its frame is to be read before the one after
        the next is asked for."""
        own = self._rounds[self.catalogue.round_for(len(lanes), plan)]
        self._slots[: len(lanes), 0] = lanes.slots
        self.staging.upload()
        own.replay()
        frame, mark = own.frames[self._turn], self._marks[self._turn]
        self._turn = 1 - self._turn
        frame.copy_(own.record, non_blocking=True)
        mark.record()
        logprobs = self._logprobs(own, plan.logprobs)
        self._last = LastRound(lanes, own.plan, own.record, own.passed, logprobs)
        return Frame(frame, logprobs, ready=mark)

    @torch.inference_mode()
    def heard(self, lanes: int) -> tuple[Tensor, Tensor]:
        """Copies of what the last replay left."""
        last = self._played()
        return last.hidden[:lanes, 0].clone(), last.logits[:lanes, 0].clone()

    def _played(self) -> LastRound:
        assert self._last is not None, "nothing was played"
        return self._last

    @torch.inference_mode()
    def recall(self, lanes: Lanes, plan: Plan, hidden: Tensor, logits: Tensor) -> Frame:
        """Play the round by plain calls, as nothing of the target's is left to replay."""
        self._slots[: len(lanes), 0] = lanes.slots
        self.staging.upload()
        target = Overheard(Recalled(hidden, logits, lanes))
        frame = play_round(target, self.drafter, lanes, plan)  # type: ignore[arg-type]
        self._last = LastRound(
            lanes, plan, frame.record, target.passed, frame.logprobs, recalled=True
        )
        return frame

    @torch.inference_mode()
    def redraw(self, slot: int, row: int, legal: bytes) -> int:
        """By plain calls behind the replay, as few rounds are redrawn."""
        return self._played().redraw(slot, row, legal)

    @torch.inference_mode()
    def amend(self, slot: int, kept: int, token: int | None = None) -> LaneRecord:
        """By plain calls behind the replay."""
        return self._played().amend(self.target, self.drafter, slot, kept, token)

    @torch.inference_mode()
    def _logprobs(self, own: Round, alternatives: int) -> Logprobs | None:
        """Log-probabilities by plain calls, from the logits that the replay left."""
        if not alternatives:
            return None
        _, _, logits = own.passed
        return token_logprobs(logits, own.record[:, HEADER:], alternatives)

    def prefill(self, lanes: Lanes, inputs: Tensor, plan: Plan) -> None:
        """Replay the pieces of one chunk, inputs [1, T] of the host's."""
        (slot,), (tokens,) = lanes.slots, inputs.numpy()
        start = 0
        for length in self.catalogue.pieces(len(tokens)):
            self._piece.host[0] = slot
            self._piece.host[1 : 1 + length] = tokens[start : start + length]
            self._piece.upload()
            self._pieces[self.catalogue.prefill_for(length, plan)]()
            start += length

    def copy(self, source: int, target: int, rows: int) -> None:
        """Copy the whole slot; its first `rows` tokens are among it."""
        assert self._copying is not None
        self._way[0] = source, target
        self.staging.upload()
        self._copying()

    def wait(self) -> None:
        """Wait for the device."""
        self.capture.wait()
