"""Products of few rows with a weight of very many outputs, as an output head has, in Triton.

Owns the walk over such a weight. As many programs as the GPU holds at once take one tile of outputs
after the other, the next ones' weights on their way meanwhile, and keep their rows. The norm before
is a kernel of its own: every program would have to repeat it. Sixteen rows make a tile, so a row's
result does not depend on how many others travel with it.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from flarechat.engine.kernels.launch import begin, options, product_type, wait
from flarechat.engine.kernels.products import ROWS

FEWEST_OUTPUTS, MOST_INPUTS = 4096, 1024
_WARPS, _STAGES = 4, 3


def suits(weight: Tensor) -> bool:
    """Whether a product with this weight [O, I] is best made here. A program holds whole lines, of
    two tiles and more at a time, so they must be short."""
    lines, wide = weight.shape
    return lines >= FEWEST_OUTPUTS and wide <= MOST_INPUTS and weight.element_size() == 2


def block_for(lines: int, rows: int) -> int:
    """Lines of a tile; small ones where a program would have few, or where rows read them again."""
    return 64 if lines > 1 << 14 and rows <= ROWS else 32


def normed_rows(x: Tensor, norm: Tensor, eps: float) -> Tensor:
    """The normalised x [..., I]; `norm` is [I]."""
    flat = x.reshape(-1, x.shape[-1])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _normed[(len(flat),)](
        flat, norm, out, flat.stride(0), eps, IN=x.shape[-1],
        TILE=triton.next_power_of_2(x.shape[-1]), num_warps=4, **options(x),
    )  # fmt: skip
    return out


def tall(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., I] with weight [O, I] → [..., O]."""
    lines, wide = weight.shape
    flat = x.reshape(-1, wide)
    block = block_for(lines, len(flat))
    out = torch.empty(*x.shape[:-1], lines, dtype=x.dtype, device=x.device)
    whole = 1 << (wide.bit_length() - 1)
    rest = max(triton.next_power_of_2(wide - whole), 16) if wide > whole else 0
    programs = min(triton.cdiv(lines, block), _processors(x.device))
    _tall[(programs, triton.cdiv(len(flat), ROWS))](
        flat, weight, out, len(flat), flat.stride(0), lines, IN=wide, WHOLE=whole, REST=rest,
        BLOCK=block, TYPE=product_type(x), STAGES=_STAGES,
        EXACT=wide == whole + rest and lines % block == 0, num_warps=_WARPS, **options(x),
    )  # fmt: skip
    return out


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 3  # interpreted, one after the other
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit  # type: ignore[untyped-decorator]
def _normed(  # type: ignore[no-untyped-def]
    x, norm, out, step, eps, IN: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr
):
    """One row."""
    begin(PDL)
    k = tl.arange(0, TILE)
    scale = tl.load(norm + k, k < IN, other=0.0).to(tl.float32)
    wait(PDL)
    row = tl.program_id(0)
    value = tl.load(x + row * step + k, k < IN, other=0.0).to(tl.float32)
    value = value * tl.rsqrt(tl.sum(value * value, 0) / IN + eps) * scale
    tl.store(out + row * IN + k, value.to(out.dtype.element_ty), k < IN)


@triton.jit  # type: ignore[untyped-decorator]
def _lines(weight, line, k, lines, IN: tl.constexpr, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """[n, m] of the lines [n] of the weight at the inputs [m]."""
    at = weight + line.to(tl.int64)[:, None] * IN + k[None, :]
    if EXACT:
        return tl.load(at)
    else:
        return tl.load(at, (line < lines)[:, None] & (k < IN)[None, :], other=0.0)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _tall(  # type: ignore[no-untyped-def]
    x, weight, out, rows, step, lines, IN: tl.constexpr, WHOLE: tl.constexpr, REST: tl.constexpr,
    BLOCK: tl.constexpr, TYPE: tl.constexpr, STAGES: tl.constexpr, EXACT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Sixteen rows with every so many tiles of BLOCK lines."""
    begin(PDL)
    row = tl.program_id(1) * 16 + tl.arange(0, 16)
    k = tl.arange(0, WHOLE)
    wait(PDL)
    known = (row < rows)[:, None]
    own = tl.load(x + row[:, None] * step + k[None, :], known & (k < IN)[None, :], other=0.0)
    own = own.to(TYPE)
    if REST > 0:
        rest = WHOLE + tl.arange(0, REST)
        own_rest = tl.load(
            x + row[:, None] * step + rest[None, :], known & (rest < IN)[None, :], other=0.0
        ).to(TYPE)
    for tile in tl.range(
        tl.program_id(0), tl.cdiv(lines, BLOCK), tl.num_programs(0), num_stages=STAGES
    ):
        line = tile * BLOCK + tl.arange(0, BLOCK)
        part = _lines(weight, line, k, lines, IN, EXACT).to(TYPE)
        value = tl.dot(own, tl.trans(part), input_precision="ieee")
        if REST > 0:
            part_rest = _lines(weight, line, rest, lines, IN, EXACT).to(TYPE)
            value = tl.dot(own_rest, tl.trans(part_rest), value, input_precision="ieee")
        at = out + row[:, None].to(tl.int64) * lines + line[None, :]
        tl.store(at, value.to(out.dtype.element_ty), known & (line < lines)[None, :])
