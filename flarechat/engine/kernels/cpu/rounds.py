"""A round's small steps on a CPU, in C: laws, drafts, acceptance and commit.

Owns how csrc/rounds.h is called. Each step is what the torch code of its name computes, draw for
draw; of equal logits the lower id comes first. They are plain calls, not operators of torch: only
the eager page runs on a CPU, and nothing traces it.
"""

from __future__ import annotations

import ctypes
import weakref
from ctypes import c_int32, c_int64, c_void_p
from typing import TYPE_CHECKING

import torch

from flarechat.engine.kernels.cpu.library import library

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.plan import LawShape, Plan
    from flarechat.engine.proposal import Proposal
    from flarechat.engine.sampling import TargetLaw
    from flarechat.engine.slot import Lanes, SlotPool
    from flarechat.engine.window import Window

MOST = 64  # FC_CANDIDATES
_MODES = {"ratio": 0, "match": 1, "mixed": 2}
_P, _I = c_void_p, c_int32


class _Slots(ctypes.Structure):
    """fc_slots."""

    _fields_ = (
        *((name, _P) for name in ("pending", "consumed", "generated", "finish")),
        *((name, _P) for name in ("budget", "seed", "eos", "top_k", "match", "prompt_seen")),
        *((name, _P) for name in ("temperature", "top_p", "min_p")),
        *((f"{name}_penalty", _P) for name in ("repetition", "presence", "frequency")),
        ("counts", _P), ("vocabulary", c_int64), ("endings", _I),
    )  # fmt: skip


class _Drafts(ctypes.Structure):
    """fc_drafts."""

    _fields_ = (("tokens", _P), ("stride", c_int64), ("depth", _I))


class _Rows(ctypes.Structure):
    """fc_rows."""

    _fields_ = (
        ("logits", _P), ("vocabulary", _P), ("columns", c_int64), ("width", _I), ("first", _I),
        ("penalties", _I),
    )  # fmt: skip


class ChainFields(ctypes.Structure):
    """fc_chain."""

    _fields_ = (
        ("staged", _Drafts), *((name, _P) for name in ("staged_offered", "limits", "tokens")),
        *((name, _P) for name in ("ids", "offered", "probs")),
        *((name, _I) for name in ("depth", "candidates", "mode")),
    )  # fmt: skip


class _Laws(ctypes.Structure):
    """fc_laws."""

    _fields_ = (
        *((name, _P) for name in ("probs", "q", "ids", "q_ids")), ("found", _I), ("q_found", _I),
    )  # fmt: skip


class TableFields(ctypes.Structure):
    """fc_table."""

    _fields_ = (("rows", _P), ("capacity", c_int64), ("bytes", c_int64), ("spare", c_int64))


_LANES = (_P, _P, _I)
_PROTOTYPES = {
    "law": (*_LANES, _P, _P, _I, _P, _P),
    "whole_law": (*_LANES, _P, _P, _P),
    "draw": (*_LANES, _P, _P, _P),
    "accept": (*_LANES, _P, _P, _P, _P, _I, _P, _P),
    "inputs": (*_LANES, _P, _P),
    "clip": (*_LANES, _I, _P, _P, _P, _P),
    "advance": (*_LANES, _I, _P, _P, _P),
    "pack": (*_LANES, _I, _P, _P, _P, _P, _P, _P),
    "store": (*_LANES, _I, _I, _P, _P),
    "last": (*_LANES, _P, _P),
}  # fmt: skip

_made = library()
assert _made is not None, "the CPU kernels are not there"
_C = _made.bound(_PROTOTYPES)
_pools: weakref.WeakKeyDictionary[SlotPool, _Slots] = weakref.WeakKeyDictionary()


class _Round:
    """The lanes of the round under way, and what every call of it begins with."""

    lanes: weakref.ref[Lanes] | None = None
    arguments: tuple[ctypes._CArgObject, int, int]


def arguments(lanes: Lanes) -> tuple[ctypes._CArgObject, int, int]:
    """The first arguments of every call. A pool's tensors stay where they are."""
    if _Round.lanes is None or _Round.lanes() is not lanes:
        slots = ctypes.byref(_slots(lanes.pool))
        _Round.arguments = slots, lanes.index.data_ptr(), len(lanes)
        _Round.lanes = weakref.ref(lanes)
    return _Round.arguments


def _slots(pool: SlotPool) -> _Slots:
    slots = _pools.get(pool)
    if slots is None:
        slots = _pools[pool] = _Slots()
        for name, tensor in pool.tensors().items():
            assert tensor.is_cpu and tensor.is_contiguous()
            setattr(slots, name, tensor.data_ptr())
        slots.vocabulary, slots.endings = pool.vocabulary, pool.eos.shape[1]
    return slots


def _drafts(tokens: Tensor) -> _Drafts:
    assert tokens.stride(1) == 1 or tokens.shape[1] < 2
    return _Drafts(tokens.data_ptr(), tokens.stride(0), tokens.shape[1])


def _rows(logits: Tensor, vocabulary: Tensor | None, first: int, penalties: bool) -> _Rows:
    mapped = None if vocabulary is None else vocabulary.data_ptr()
    columns, width = logits.shape[-1], logits.shape[1]
    return _Rows(logits.data_ptr(), mapped, columns, width, first, penalties)


def takes(shape: LawShape) -> bool:
    """Whether `law` makes laws of this shape: of few candidates, or of the whole vocabulary."""
    return shape.few or not shape.candidates


def law(
    logits: Tensor, lanes: Lanes, drafts: Tensor, shape: LawShape, first: int = 0,
    vocabulary: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """probs float32 and ids int64 [B, W, C]; over the whole vocabulary probs [B, W, V] and None.
    Arguments as of `sampling.target_law`."""
    logits = logits.float().contiguous()
    if shape.few:
        return _few(logits, lanes, drafts, shape, first, vocabulary)
    probs = torch.empty_like(logits)
    rows, before = _rows(logits, vocabulary, first, shape.penalties), _drafts(drafts)
    _C["whole_law"](*arguments(lanes), ctypes.byref(rows), ctypes.byref(before), probs.data_ptr())
    return probs, None


def _few(
    logits: Tensor, lanes: Lanes, drafts: Tensor, shape: LawShape, first: int,
    vocabulary: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    found = min(shape.candidates, logits.shape[-1])
    probs = torch.empty(*logits.shape[:2], found)
    ids = torch.empty(probs.shape, dtype=torch.int64)
    rows, before = _rows(logits, vocabulary, first, shape.penalties), _drafts(drafts)
    _C["law"](
        *arguments(lanes), ctypes.byref(rows), ctypes.byref(before), found, probs.data_ptr(),
        ids.data_ptr(),
    )  # fmt: skip
    return probs, ids


class Chain:
    """Drafts of K steps as they are drawn: the tokens so far, and the law each was drawn from.

    tokens int64 [B, K], probs float32 and ids int64 [B, K, C], offered int64 [B]. A lane's first
    `staged.offered` drafts are staged ones, with points for laws; without `staged` there are none.
    `depth` int64 [S] is by slot how many drafts a lane may draw.
    """

    def __init__(self, lanes: Lanes, depth: Tensor, staged: Proposal | None, plan: Plan) -> None:
        count, steps = len(lanes), plan.draft_tokens
        self.lanes, self.penalties = lanes, plan.law.penalties
        self._candidates = plan.law.candidates
        self._mode = _MODES[plan.acceptance]
        self.tokens = torch.empty(count, steps, dtype=torch.int64)
        self.offered = torch.empty(count, dtype=torch.int64)
        self.probs = self.ids = self.tokens[..., None]
        self._depth, self._staged = depth, staged

    def draw(self, step: int, logits: Tensor, penalties: bool, vocabulary: Tensor | None) -> Tensor:
        """Draft `step` int64 [B, 1] from logits [B, 1, V], and its law."""
        logits = logits.float().contiguous()
        if step == 0:
            self.fields = self.of(logits.shape[-1])
        said = torch.empty(len(self.lanes), 1, dtype=torch.int64)
        rows = _rows(logits, vocabulary, step, penalties)
        _C["draw"](
            *arguments(self.lanes), ctypes.byref(rows), ctypes.byref(self.fields), said.data_ptr()
        )
        return said

    def of(self, columns: int) -> ChainFields:
        """fc_chain for logits of so many columns, with room for the laws in `probs` and `ids`."""
        found = min(self._candidates, columns)
        self.probs = torch.empty(*self.tokens.shape, found)
        self.ids = torch.empty(self.probs.shape, dtype=torch.int64)
        staged, offered = _Drafts(), None
        if self._staged is not None:
            staged, offered = _drafts(self._staged.tokens), self._staged.offered.data_ptr()
        return ChainFields(
            staged, offered, self._depth.data_ptr(), self.tokens.data_ptr(), self.ids.data_ptr(),
            self.offered.data_ptr(), self.probs.data_ptr(), self.tokens.shape[1], found, self._mode,
        )  # fmt: skip


def drafts(lanes: Lanes, depth: Tensor, staged: Proposal | None, plan: Plan) -> Chain:
    """The drafts of a round, none drawn yet; arguments as of `Chain`."""
    return Chain(lanes, depth, staged, plan)


def fits(law: TargetLaw, proposal: Proposal) -> bool:
    """Whether both laws are of few candidates, each with its id."""
    if law.ids is None or law.ids.shape[-1] > MOST:
        return False
    return proposal.probs is None or (proposal.ids is not None and proposal.ids.shape[-1] <= MOST)


def accept(
    law: TargetLaw, proposal: Proposal, lanes: Lanes, acceptance: str
) -> tuple[Tensor, Tensor]:
    """tokens int64 [B, W] and accepted int64 [B], as `accept.accept`, where the laws fit."""
    assert law.ids is not None
    held = [law.probs.contiguous(), law.ids.contiguous()]
    if proposal.probs is not None and proposal.ids is not None:
        held += [proposal.probs.contiguous(), proposal.ids.contiguous()]
    p, ids, *of_drafts = (t.data_ptr() for t in held)
    q, q_ids = of_drafts or (None, None)
    laws = _Laws(p, q, ids, q_ids, held[0].shape[-1], held[-1].shape[-1])
    given, offered = _drafts(proposal.tokens), proposal.offered.contiguous()
    sure = None if proposal.sure is None else proposal.sure.contiguous()
    tokens = torch.empty(law.probs.shape[:2], dtype=torch.int64)
    accepted = torch.empty_like(offered)
    _C["accept"](
        *arguments(lanes), ctypes.byref(laws), ctypes.byref(given), offered.data_ptr(),
        None if sure is None else sure.data_ptr(), _MODES[acceptance], tokens.data_ptr(),
        accepted.data_ptr(),
    )  # fmt: skip
    return tokens, accepted


def inputs(lanes: Lanes, drafts: Tensor) -> Tensor:
    """int64 [B, W]: the pending token of each lane and its drafts [B, K]."""
    out = torch.empty(len(drafts), drafts.shape[1] + 1, dtype=torch.int64)
    _C["inputs"](*arguments(lanes), ctypes.byref(_drafts(drafts)), out.data_ptr())
    return out


def clip(tokens: Tensor, accepted: Tensor, lanes: Lanes) -> tuple[Tensor, Tensor]:
    """As `accept.clip`."""
    tokens, emitted = tokens.contiguous(), torch.empty_like(accepted)
    finish = torch.empty_like(accepted)
    _C["clip"](
        *arguments(lanes), tokens.shape[1], tokens.data_ptr(), accepted.data_ptr(),
        emitted.data_ptr(), finish.data_ptr(),
    )  # fmt: skip
    return emitted, finish


def advance(lanes: Lanes, tokens: Tensor, emitted: Tensor, finish: Tensor) -> None:
    """As `Lanes.advance`."""
    tokens = tokens.contiguous()
    _C["advance"](
        *arguments(lanes), tokens.shape[1], tokens.data_ptr(), emitted.data_ptr(), finish.data_ptr()
    )


def pack(
    lanes: Lanes, offered: Tensor, accepted: Tensor, emitted: Tensor, finish: Tensor,
    tokens: Tensor, header: int,
) -> Tensor:  # fmt: skip
    """As `frame.pack`: int64 [B, header + W]."""
    tokens, width = tokens.contiguous(), tokens.shape[1]
    out = torch.empty(len(tokens), header + width, dtype=torch.int64)
    columns = (offered.contiguous(), accepted, emitted, finish, tokens, out)
    _C["pack"](*arguments(lanes), width, *(column.data_ptr() for column in columns))
    return out


def store(rows: Tensor, hidden: Tensor, window: Window) -> None:
    """Put hidden [B, W, D] into the window's rows of rows [S, R, D]; the window has no shift."""
    assert hidden.dtype == rows.dtype and not window.shift
    hidden = hidden.contiguous()
    _C["store"](
        *arguments(window.lanes), window.width, window.lanes.prefilling,
        ctypes.byref(table(rows, window.spare)), hidden.data_ptr(),
    )  # fmt: skip


def last(rows: Tensor, window: Window) -> Tensor:
    """[B, 1, D]: each lane's row of rows [S, R, D] of its last consumed token."""
    assert window.shift == -1
    out = rows.new_empty(len(window.index), 1, rows.shape[-1])
    _C["last"](*arguments(window.lanes), ctypes.byref(table(rows, window.spare)), out.data_ptr())
    return out


def table(rows: Tensor, spare: int) -> TableFields:
    """fc_table of rows [S, R, D]."""
    _, capacity, dim = rows.shape
    return TableFields(rows.data_ptr(), capacity, dim * rows.element_size(), spare)
