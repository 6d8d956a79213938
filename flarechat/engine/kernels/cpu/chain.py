"""Blocks in a row and whole chains of drafts on a CPU, each in one call of C.

Owns how csrc/chain.h is called. What a call does is what its parts do one by one, to the bit; one
by one, calling them takes a third of a draft's time. They are plain calls, as in `rounds`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_void_p
from typing import TYPE_CHECKING

import torch

from flarechat.engine.kernels.cpu.dispatch import readable
from flarechat.engine.kernels.cpu.library import Matrix, library
from flarechat.engine.kernels.cpu.operators import AttentionBlock, MlpBlock, Stored, matrix, placed
from flarechat.engine.kernels.cpu.rounds import arguments, table

if TYPE_CHECKING:
    from torch import Tensor

    from flarechat.engine.kernels.cpu.rounds import Chain
    from flarechat.engine.window import Window

_P, _I = c_void_p, c_int32


class _Block(ctypes.Structure):
    """fc_block."""

    _fields_ = (("attention", _P), ("mlp", _P))


class _Head(ctypes.Structure):
    """fc_head."""

    _fields_ = (
        *((name, _P) for name in ("norm_hidden", "norm_embedding", "norm", "blocks", "vocabulary")),
        *((name, Matrix) for name in ("embedding", "pairing", "fuse", "output")),
        ("eps", c_float), ("count", _I),
    )  # fmt: skip


_PROTOTYPES = {
    "blocks": (_P, _I, _P, _P, _P),
    "pair": (_P, _I, _P, _P, _P),
    "draft": (_P, _P, _P, _I, _P, _I, _P),
    "absorb": (_P, _P, _P, _I, _I, _I, _P, _P, _P),
}

_made = library()
assert _made is not None, "the CPU kernels are not there"
_C = _made.bound(_PROTOTYPES)


class Blocks:
    """Blocks one after the other, each an attention block and an MLP block of D columns."""

    def __init__(self, blocks: Sequence[tuple[AttentionBlock, MlpBlock]]) -> None:
        self._blocks = tuple(blocks)
        self.fields = (_Block * len(self._blocks))(
            *(_Block(attention.address, mlp.address) for attention, mlp in self._blocks)
        )

    def __call__(
        self, x: Tensor, window: Window, keys: Sequence[Tensor], values: Sequence[Tensor],
        layers: range,
    ) -> Tensor:  # fmt: skip
        """x [B, W, D] of a window's rows through some blocks → a new tensor. keys and values are
        every block's cache, as AttentionBlock takes it."""
        self.bind(keys, values)
        fields, window_at = placed(window)
        shape = fields.lanes, fields.width, self._blocks[0][0].columns
        x = x.contiguous()
        readable(x, torch.float32)
        assert x.shape == shape, f"rows {tuple(x.shape)}"
        y = torch.empty_like(x)
        begin = ctypes.addressof(self.fields) + layers.start * ctypes.sizeof(_Block)
        _C["blocks"](begin, len(layers), window_at, x.data_ptr(), y.data_ptr())
        return y

    def bind(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Work on these caches from now on."""
        for (attention, _), own_keys, own_values in zip(self._blocks, keys, values, strict=True):
            attention.bind(own_keys, own_values)


class Head:
    """A draft head of D columns: `norms` are of hidden rows, of embeddings and of its output; as
    `chain.h` has them, `pairing` is [D, 2 D], `fuse` [D, taps * D] or None, and `output` [R, D] of
    the tokens `vocabulary` int64 [R], or of all in order. Hidden rows are float32 [S, rows, D]."""

    def __init__(
        self, blocks: Blocks, norms: tuple[Tensor, Tensor, Tensor], eps: float, *,
        embedding: Stored, pairing: Stored, fuse: Stored | None, output: Stored,
        vocabulary: Tensor | None,
    ) -> None:  # fmt: skip
        dim = pairing.rows
        for norm in norms:
            readable(norm, torch.float32)
            assert norm.shape == (dim,), f"norm of {tuple(norm.shape)}"
        sizes = pairing.columns, embedding.columns, output.columns, fuse.rows if fuse else dim
        assert sizes == (2 * dim, dim, dim, dim), f"a head of {dim} columns does not fit: {sizes}"
        tokens = embedding.rows if vocabulary is None else len(vocabulary)
        assert output.rows == tokens, f"{output.rows} outputs of {tokens} tokens"
        self.blocks, self.dim, self.exported = blocks, dim, fuse.columns if fuse else dim
        self._outputs = output.rows
        self._tensors = norms, embedding, pairing, fuse, output, vocabulary
        self._fields = _Head(
            *(norm.data_ptr() for norm in norms), ctypes.addressof(blocks.fields),
            None if vocabulary is None else vocabulary.data_ptr(), matrix(embedding),
            matrix(pairing), matrix(fuse) if fuse else Matrix(), matrix(output), eps,
            len(blocks.fields),
        )  # fmt: skip
        self._address = ctypes.addressof(self._fields)

    def pair(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """What the first block reads of hidden [B, W, D] and tokens int64 [B, W]: [B, W, D]."""
        hidden, tokens = hidden.contiguous(), tokens.contiguous()
        readable(hidden, torch.float32)
        readable(tokens, torch.int64)
        assert hidden.shape == (*tokens.shape, self.dim), f"rows {tuple(hidden.shape)}"
        x = torch.empty_like(hidden)
        _C["pair"](
            self._address, tokens.numel(), hidden.data_ptr(), tokens.data_ptr(), x.data_ptr()
        )
        return x

    def draft(
        self, drawn: Chain, rows: Tensor, spare: int, keys: Sequence[Tensor],
        values: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """All steps of a chain, from each lane's last one of the hidden rows."""
        self.blocks.bind(keys, values)
        at, fields = self._table(rows, spare), drawn.of(self._outputs)
        _C["draft"](
            self._address, *arguments(drawn.lanes), at, drawn.penalties, ctypes.byref(fields)
        )

    def absorb(
        self, window: Window, rows: Tensor, exported: Tensor, inputs: Tensor | None,
        keys: Sequence[Tensor], values: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """Put what the target exported [B, W, taps * D] into the window's hidden rows; with the
        pass's inputs int64 [B, W] also write keys and values of their pairs."""
        assert not window.shift
        exported = exported.contiguous()
        readable(exported, torch.float32)
        shape = len(window.index), window.width
        assert exported.shape == (*shape, self.exported), f"rows {tuple(exported.shape)}"
        given = None
        if inputs is not None:
            inputs = inputs.contiguous()
            readable(inputs, torch.int64)
            assert inputs.shape == shape, f"inputs {tuple(inputs.shape)}"
            self.blocks.bind(keys, values)
            given = inputs.data_ptr()
        _C["absorb"](
            self._address, *arguments(window.lanes), window.width, window.lanes.prefilling,
            self._table(rows, window.spare), exported.data_ptr(), given,
        )  # fmt: skip

    def _table(self, rows: Tensor, spare: int) -> ctypes._CArgObject:
        readable(rows, torch.float32)
        assert rows.shape[-1] == self.dim, f"hidden rows {tuple(rows.shape)}"
        return ctypes.byref(table(rows, spare))
