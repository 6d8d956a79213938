"""What a recipe calls of the CPU kernels: a product, a table, an attention block, an MLP block.

Owns the C structures that operators are given by address, each with the tensors it points into.
Rows are float32, and a row's result depends on nothing but that row: not on the width, the lanes
beside it, the threads or the instruction set.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from flarechat.engine.kernels.cpu.dispatch import readable
from flarechat.engine.kernels.cpu.library import (
    GROUP,
    KINDS,
    AttentionFields,
    Matrix,
    MlpFields,
    WindowFields,
    library,
    matrix_bytes,
    reason,
)
from flarechat.errors import EngineError

if TYPE_CHECKING:
    from flarechat.engine.window import Window

_attention_block = torch.ops.flarechat.attention_block.default
_attention_write = torch.ops.flarechat.attention_write.default
_mlp_block = torch.ops.flarechat.mlp_block.default
_linear = torch.ops.flarechat.linear.default
_lookup = torch.ops.flarechat.lookup.default
_ALIGNED = 32  # bytes, a multiple of which is where weights begin


class Stored(Protocol):
    """A weight [rows, columns] in tiles: uint8 data as flarechat.h lays it out."""

    @property
    def kind(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def data(self) -> Tensor: ...


class _Prepared:
    """A C structure at a fixed address, and the tensors that it points into."""

    def __init__(self, fields: ctypes.Structure, *tensors: Tensor) -> None:
        if library() is None:
            raise EngineError(
                f"The CPU kernels are {reason()}.",
                "Choose another --dtype, or install flarechat again where a C compiler is.",
            )
        self._fields, self._tensors = fields, tensors
        self.address = ctypes.addressof(fields)


def matrix(stored: Stored) -> Matrix:
    """fc_matrix of a weight; whoever keeps it keeps the weight's data too."""
    data = stored.data
    readable(data, torch.uint8)
    expected = matrix_bytes(stored.kind, stored.rows, stored.columns)
    assert data.numel() == expected, f"{data.numel()} bytes of a weight, not {expected}"
    assert data.data_ptr() % _ALIGNED == 0, f"a weight does not begin at {_ALIGNED} bytes"
    assert stored.kind == "bf16" or stored.columns % GROUP == 0, "columns are not whole groups"
    return Matrix(data.data_ptr(), KINDS[stored.kind], stored.rows, stored.columns)


def _floats(*tensors: Tensor) -> list[int]:
    """Addresses of what C reads as float32."""
    for tensor in tensors:
        readable(tensor, torch.float32)
    return [tensor.data_ptr() for tensor in tensors]


class Product(_Prepared):
    """x [..., columns] → [..., rows], of rows normalised first if `norm` [columns] is given."""

    def __init__(self, weight: Stored, norm: Tensor | None = None, eps: float = 0.0) -> None:
        if norm is not None:
            readable(norm, torch.float32)
            assert norm.shape == (weight.columns,), f"norm of {tuple(norm.shape)}"
        super().__init__(matrix(weight), weight.data)
        self.rows, self.columns = weight.rows, weight.columns
        self.norm, self.eps = norm, eps

    def __call__(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == self.columns, f"rows of {x.shape[-1]}, not {self.columns}"
        made: Tensor = _linear(self.address, self.rows, self.norm, self.eps, x.contiguous())
        return made


class Table(_Prepared):
    """Rows of a weight for ids int64 [...], each in 0 … rows - 1 → float32 [..., columns]."""

    def __init__(self, weight: Stored) -> None:
        super().__init__(matrix(weight), weight.data)
        self.columns = weight.columns

    def __call__(self, ids: Tensor) -> Tensor:
        made: Tensor = _lookup(self.address, self.columns, ids.contiguous())
        return made


class MlpBlock(_Prepared):
    """Adds down(silu(gate(norm(x))) * up(norm(x))) to x [..., D] in place, and returns it."""

    def __init__(self, norm: Tensor, eps: float, gate: Stored, up: Stored, down: Stored) -> None:
        (address,) = _floats(norm)
        wide, inner = gate.columns, gate.rows
        sizes = up.rows, up.columns, down.rows, down.columns
        assert sizes == (inner, wide, wide, inner), f"gate, up and down do not fit: {sizes}"
        assert norm.shape == (wide,), f"norm of {tuple(norm.shape)}"
        fields = MlpFields(address, matrix(gate), matrix(up), matrix(down), eps)
        super().__init__(fields, norm, gate.data, up.data, down.data)
        self.columns = wide

    def __call__(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == self.columns, f"rows of {x.shape[-1]}, not {self.columns}"
        _mlp_block(self.address, x)
        return x


class AttentionBlock(_Prepared):
    """x [B, W, D] of a window's rows → x + out(attention(norm(x))), a new tensor.

    `cos` and `sin` are float32 [positions, head_dim]; keys and values float16 [S, kv_heads, rows,
    head_dim], of which the window's rows are written before they are read.
    """

    def __init__(
        self, norm: Tensor, eps: float, q: Stored, k: Stored, v: Stored, out: Stored, cos: Tensor,
        sin: Tensor, *, heads: int, kv_heads: int, head_dim: int,
    ) -> None:  # fmt: skip
        wide = q.columns
        sizes = [(m.rows, m.columns) for m in (q, k, v, out)]
        queries, kept = heads * head_dim, kv_heads * head_dim
        assert sizes == [(queries, wide), (kept, wide), (kept, wide), (wide, queries)], sizes
        assert norm.shape == (wide,) and cos.shape == sin.shape == (len(cos), head_dim)
        assert heads % kv_heads == 0, f"{heads} heads over {kv_heads}"
        addresses = _floats(norm, cos, sin)
        fields = AttentionFields(
            *addresses, None, None, 0, 0, *map(matrix, (q, k, v, out)), eps, heads, kv_heads,
            head_dim,
        )  # fmt: skip
        super().__init__(fields, norm, cos, sin, q.data, k.data, v.data, out.data)
        self.columns, self._shape, self._positions = wide, (kv_heads, head_dim), len(cos)
        self._keys = self._values = torch.empty(0)

    def __call__(self, x: Tensor, window: Window, keys: Tensor, values: Tensor) -> Tensor:
        at = self._placed(x, window, keys, values)
        made: Tensor = _attention_block(self.address, at, x.contiguous(), keys, values)
        return made

    def write(self, x: Tensor, window: Window, keys: Tensor, values: Tensor) -> None:
        """Put only the keys and values of x [B, W, D] into the window's rows."""
        at = self._placed(x, window, keys, values)
        _attention_write(self.address, at, x.contiguous(), keys, values)

    def _placed(self, x: Tensor, window: Window, keys: Tensor, values: Tensor) -> int:
        """The address of the window, of which x has the rows, with this cache in the structure."""
        self.bind(keys, values)
        fields, address = placed(window)
        assert x.shape == (fields.lanes, fields.width, self.columns), f"rows {tuple(x.shape)}"
        return address

    def bind(self, keys: Tensor, values: Tensor) -> None:
        """Work on this cache from now on."""
        if keys is self._keys and values is self._values:
            return
        for cache in (keys, values):
            _, kv_heads, rows, head_dim = cache.shape
            assert cache.dtype is torch.float16 and cache.is_cpu, f"a cache of {cache.dtype}"
            same = cache.stride() == (keys.stride(0), keys.stride(1), head_dim, 1)
            fits = (kv_heads, head_dim) == self._shape and rows <= self._positions
            assert same and fits, f"a cache is not laid out so: {tuple(cache.shape)}"
        fields = self._fields
        fields.keys, fields.values = keys.data_ptr(), values.data_ptr()
        fields.slot_stride, fields.head_stride = keys.stride(0), keys.stride(1)
        self._keys, self._values = keys, values


class _Place:
    """The window of the pass under way, which all of its layers share."""

    window: weakref.ref[Window] | None = None
    fields: WindowFields
    address: int


def placed(window: Window) -> tuple[WindowFields, int]:
    """fc_window of a window and its address, which hold until another window is asked for."""
    if _Place.window is None or _Place.window() is not window:
        for counters in (window.index, window.consumed, window.finish):
            readable(counters, torch.int64)
        _Place.fields = WindowFields(
            window.index.data_ptr(), window.consumed.data_ptr(), window.finish.data_ptr(),
            window.spare, len(window.index), window.width, window.shift, window.lanes.prefilling,
        )  # fmt: skip
        _Place.window, _Place.address = weakref.ref(window), ctypes.addressof(_Place.fields)
    return _Place.fields, _Place.address
