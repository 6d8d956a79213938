"""The frame: the one small integer record a round leaves for the host.

Owns its column layout. int64 [B, HEADER + W]; log-probabilities ride beside it as floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from flarechat.engine import kernels

if TYPE_CHECKING:
    from flarechat.engine.slot import Lanes

OFFERED, ACCEPTED, EMITTED, FINISH, CONSUMED, GENERATED = range(6)
HEADER = 6


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural-log probabilities under the unfiltered law.

    chosen: float32 [B, W] of the row's token; top / top_ids: [B, W, N], likeliest first.
    """

    chosen: Tensor
    top: Tensor
    top_ids: Tensor


class Arrival(Protocol):
    """When a frame is there: an event of the device's."""

    def synchronize(self) -> None:
        """Wait until it is."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a round leaves: `record` int64 [B, HEADER + W] and, if the plan asked, log-probs.

    `repair_ms` is what its executor saw go into running kept rows again. A frame may still be on
    its way when it is handed out; `ready` says when it is there, None that it is or that reading
    it waits. Its memory is its executor's, which uses it again `depth` rounds later.
    """

    record: Tensor
    logprobs: Logprobs | None = None
    repair_ms: float = 0.0
    ready: Arrival | None = None


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """One lane's frame on the host."""

    offered: int
    accepted: int
    emitted: int
    finish: int
    consumed: int
    generated: int
    tokens: tuple[int, ...]


def pack(
    lanes: Lanes, offered: Tensor, accepted: Tensor, emitted: Tensor, finish: Tensor,
    tokens: Tensor,
) -> Tensor:  # fmt: skip
    """Columns [B] and tokens [B, W], after the lanes advanced → int64 [B, HEADER + W]."""
    if (steps := kernels.of_round(tokens)) is not None:
        packed: Tensor = steps.pack(lanes, offered, accepted, emitted, finish, tokens, HEADER)
        return packed
    counted = (lanes.consumed(), lanes.generated())
    head = torch.stack([offered, accepted, emitted, finish, *counted], dim=1)
    return torch.cat([head, tokens], dim=1)


def token_logprobs(logits: Tensor, tokens: Tensor, alternatives: int) -> Logprobs:
    """Log-softmax of logits [B, W, V] at tokens [B, W], with the `alternatives` likeliest."""
    logits = logits.float()
    scale = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(2, tokens[..., None]) - scale
    top, ids = logits.topk(alternatives, dim=-1)
    return Logprobs(chosen[..., 0], top - scale, ids)


def read(frame: Frame) -> list[LaneRecord]:
    """The host's view, one record a lane. This is where the host waits for the round."""
    if frame.ready is not None:
        frame.ready.synchronize()
    return [lane_record(row) for row in frame.record.tolist()]


def lane_record(row: Sequence[int]) -> LaneRecord:
    """What one row of a record says."""
    return LaneRecord(
        offered=row[OFFERED],
        accepted=row[ACCEPTED],
        emitted=row[EMITTED],
        finish=row[FINISH],
        consumed=row[CONSUMED],
        generated=row[GENERATED],
        tokens=tuple(row[HEADER : HEADER + row[EMITTED]]),
    )
