"""The operators flarechat::… of torch, which call the C library.

Owns what they refuse. A structure of flarechat.h is passed as its address: what it points to is
read, and only what the schema says is written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flarechat.engine.kernels.cpu.library import Library, library
from flarechat.errors import EngineError

_CACHED = "Tensor x, Tensor(a!) keys, Tensor(b!) values"
_SCHEMAS = (
    f"attention_block(int block, int window, {_CACHED}) -> Tensor",
    f"attention_write(int block, int window, {_CACHED}) -> ()",
    "mlp_block(int block, Tensor(a!) x) -> ()",
    "linear(int matrix, int rows, Tensor? norm, float eps, Tensor x) -> Tensor",
    "lookup(int matrix, int columns, Tensor ids) -> Tensor",
)


def readable(x: Tensor, dtype: torch.dtype) -> None:
    """Refuse a tensor that C would misread."""
    if x.dtype is not dtype or not x.is_cpu or not x.is_contiguous():
        raise EngineError(
            f"The CPU kernels take contiguous {dtype} on the CPU, not {x.dtype} on {x.device} with "
            f"strides {x.stride()}.",
            "This is a fault in flarechat; `--dtype packed-float16` does without them.",
        )


def _registered(made: Library | None) -> torch.library.Library:
    """The operators, each of which refuses whatever C could not read."""
    operators = torch.library.Library("flarechat", "DEF")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        operators.define(schema)  # type: ignore[no-untyped-call]
    if made is None:
        return operators
    c = made

    def attention_block(block: int, window: int, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        readable(x, torch.float32)
        y = torch.empty_like(x)
        c.attention_block(block, window, x.data_ptr(), y.data_ptr())
        return y

    def attention_write(block: int, window: int, x: Tensor, keys: Tensor, values: Tensor) -> None:
        readable(x, torch.float32)
        c.attention_write(block, window, x.data_ptr())

    def mlp_block(block: int, x: Tensor) -> None:
        readable(x, torch.float32)
        at = x.data_ptr()
        c.mlp_block(block, x.numel() // x.shape[-1], at, at)

    def linear(matrix: int, rows: int, norm: Tensor | None, eps: float, x: Tensor) -> Tensor:
        readable(x, torch.float32)
        y = x.new_empty((*x.shape[:-1], rows))
        weight = None if norm is None else norm.data_ptr()
        c.linear(matrix, weight, eps, x.numel() // x.shape[-1], x.data_ptr(), y.data_ptr())
        return y

    def lookup(matrix: int, columns: int, ids: Tensor) -> Tensor:
        readable(ids, torch.int64)
        y = torch.empty((*ids.shape, columns), dtype=torch.float32)
        c.lookup(matrix, ids.numel(), ids.data_ptr(), y.data_ptr())
        return y

    for function in (attention_block, attention_write, mlp_block, linear, lookup):
        name, every = function.__name__, "CompositeExplicitAutograd"
        operators.impl(name, function, every)  # type: ignore[no-untyped-call]
    return operators


_OPERATORS = _registered(library())
