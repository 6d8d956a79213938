"""What captured rounds take in memory beside weights and states, before anything is allocated.

Owns the bound. Captures share one pool, as one is replayed at a time, so that the largest decides;
only its record outlives a capture. Pure arithmetic; knows no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from flarechat.engine.executors.catalogue import Captured, Catalogue
from flarechat.engine.offer import runs_chain
from flarechat.engine.slot import SCRATCH_ROWS

# Bytes for each row and token of the vocabulary while a law over all of it is made: logits as
# floats, counts, both sorted, what each filter leaves; 41 are alive at once, a sort has its own.
LAW = 64
# Of each draft, for each token it could have been: its law and that law's tokens, twice.
DRAFT_LAW = 24
# Partial sums of attention: at most so many parts of a cache, and so many rows in one tile.
PARTS, TILE = 128, 128
# An allocator takes memory in pieces of up to 20 MiB; a capture itself takes less than this.
SLACK, CAPTURE = 64 << 20, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a target: its shapes, the bytes of a number, the layers that a head taps and the tokens
    that it drafts."""

    vocabulary: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    itemsize: int
    taps: int = 1
    drafts: int = 0


def scratch(catalogue: Catalogue, sizes: Sizes) -> int:
    """Bytes that all captures of a catalogue take at most."""
    wanted = catalogue.all()
    most = max(alive_at_most(one, sizes) for one in wanted)
    return max(most, copied(catalogue, sizes)) + len(wanted) * CAPTURE + SLACK


def copied(catalogue: Catalogue, sizes: Sizes) -> int:
    """Bytes on their way while one slot is copied to another: one tensor's of all its rows."""
    features = max(sizes.kv_heads * sizes.head_dim, sizes.hidden if sizes.drafts else 0)
    rows = catalogue.context + 2 * SCRATCH_ROWS
    return rows * features * sizes.itemsize if catalogue.slots > 1 else 0


def alive_at_most(captured: Captured, sizes: Sizes) -> int:
    """Bytes of one capture at its fullest: those of the pass, and those of the law over it."""
    lanes, rows, depth = captured.lanes, captured.rows, captured.plan.draft_tokens
    law = 0 if captured.prefill else rows * sizes.vocabulary * (LAW + sizes.itemsize)
    if runs_chain(captured.plan.drafting):
        law += lanes * sizes.drafts * (LAW + depth * DRAFT_LAW)
    wide = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
    features = (2 * sizes.taps + 6) * sizes.hidden + 4 * sizes.inner + 3 * wide
    tiles = -(-captured.plan.width * sizes.heads // (TILE * sizes.kv_heads))
    parts = lanes * sizes.kv_heads * tiles * PARTS * TILE
    padded = 1 << max(sizes.head_dim - 1, 15).bit_length()
    sums = 0 if captured.prefill else 4 * parts * (padded + 2)
    return rows * features * sizes.itemsize + sums + law
