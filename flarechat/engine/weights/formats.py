"""Packed number formats of checkpoints: what their bytes mean, and how to write them.

Pure functions of tensors; names and files are not their work. The last two dimensions of a matrix
are [out, in], any before them are a batch. Scales multiply in every format, whatever their name.

nvfp4        two E2M1 codes a byte, low half first; an E4M3 scale per 16 inputs; one float32 scale
fp8_blocks   E4M3 with a scale per tile of 128 by 128, the last ones cut short
fp8          E4M3 with one scale
mxfp8        E4M3 with an E8M0 scale (a power of two) per 32 inputs
csf          not a weight format: the lossless packing of nvfp4's E4M3 scales
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from flarechat.errors import ModelError

FP8 = torch.float8_e4m3fn
NVFP4, FP8_BLOCKS, FP8_TENSOR, MXFP8 = "nvfp4", "fp8_blocks", "fp8", "mxfp8"
NVFP4_GROUP, MXFP8_GROUP, FP8_TILE = 16, 32, 128
HINT = "The checkpoint is damaged or of a format flarechat does not know; download it again."

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_MOST, _FP8_MOST = 6.0, 448.0
_CSF_SLAB, _CSF_WINDOW, _CSF_PLACES = 16, 16, 1 << 24


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix, or a batch of them, as stored. `scale_2` [batch] float32 is nvfp4's alone."""

    kind: str
    weight: Tensor
    scale: Tensor
    scale_2: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        *batch, wide = self.weight.shape
        return (*batch, 2 * wide if self.kind == NVFP4 else wide)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What it holds, for moving and counting."""
        held = (self.weight, self.scale, self.scale_2)
        return tuple(tensor for tensor in held if tensor is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def to(self, device: torch.device) -> Packed:
        """The same on a device."""
        second = None if self.scale_2 is None else self.scale_2.to(device)
        return replace(
            self, weight=self.weight.to(device), scale=self.scale.to(device), scale_2=second
        )

    def take(self, ids: Tensor) -> Packed:
        """The matrices `ids` int64 [...] of its first batch dimension."""
        second = None if self.scale_2 is None else self.scale_2[ids]
        # Indexing knows no float8; its bytes are indexed instead.
        return replace(
            self, weight=_rows(self.weight, ids), scale=_rows(self.scale, ids), scale_2=second
        )

    def decode(self) -> Tensor:
        """Its values, float32."""
        if self.kind == NVFP4:
            assert self.scale_2 is not None, "nvfp4 has two scales"
            return decode_nvfp4(self.weight, self.scale, self.scale_2)
        if self.kind == FP8_BLOCKS:
            return decode_fp8_blocks(self.weight, self.scale)
        if self.kind == MXFP8:
            return decode_mxfp8(self.weight, self.scale)
        return decode_fp8(self.weight, self.scale)


class Batch:
    """Room for equal matrices, floats or packed, [*batch, ...] on a device, filled one by one."""

    def __init__(self, like: Tensor | Packed, batch: tuple[int, ...], device: torch.device) -> None:
        self._like = like
        self._held = [
            torch.empty((*batch, *part.shape), dtype=part.dtype, device=device)
            for part in _tensors(like)
        ]

    def put(self, index: tuple[int, ...], matrix: Tensor | Packed) -> None:
        """Copy a matrix to its place; one of another format or shape is a ModelError."""
        ours, theirs = _told(self._like), _told(matrix)
        if ours != theirs:
            raise ModelError(f"Matrices of one batch differ: {ours} and {theirs}.", HINT)
        for whole, part in zip(self._held, _tensors(matrix), strict=True):
            whole[index] = part

    @property
    def whole(self) -> Tensor | Packed:
        """All of it."""
        if not isinstance(self._like, Packed):
            return self._held[0]
        return Packed(self._like.kind, *self._held)


def _tensors(matrix: Tensor | Packed) -> tuple[Tensor, ...]:
    return matrix.tensors if isinstance(matrix, Packed) else (matrix,)


def _told(matrix: Tensor | Packed) -> str:
    kind = matrix.kind if isinstance(matrix, Packed) else "floats"
    sizes = " ".join(f"{part.dtype} {tuple(part.shape)}" for part in _tensors(matrix))
    return f"{kind} of {sizes}".replace("torch.", "")


def decode_nvfp4(weight: Tensor, scale: Tensor, scale_2: Tensor) -> Tensor:
    """Codes uint8 [..., out, in/2], scales E4M3 [..., out, in/16] and [...] to float32."""
    codes = torch.stack([weight & 15, weight >> 4], dim=-1).flatten(-2)
    values = _groups(_e2m1(weight.device)[codes.long()], NVFP4_GROUP)
    return (values * scale.float()[..., None] * scale_2[..., None, None, None]).flatten(-2)


def encode_nvfp4(values: Tensor, scale_2: Tensor | None = None) -> Packed:
    """Values [..., out, in] in nvfp4; each matrix gets a `scale_2` of its own if none is given."""
    grouped = _groups(values.float(), NVFP4_GROUP)
    most = grouped.abs().amax(-1)
    if scale_2 is None:
        scale_2 = most.amax((-1, -2)) / (_E2M1_MOST * _FP8_MOST)
        scale_2 = torch.where(scale_2 > 0, scale_2, 1.0)
    wide = scale_2.float()[..., None, None]
    scale = (most / _E2M1_MOST / wide).clamp(max=_FP8_MOST).to(FP8)
    step = (scale.float() * wide)[..., None]
    size = torch.where(step > 0, grouped.abs() / step, 0.0)
    code = torch.zeros_like(size, dtype=torch.uint8)
    for below, (left, right) in enumerate(pairwise(_E2M1)):
        middle = (left + right) / 2
        code += (size >= middle) if below % 2 else (size > middle)
    code |= ((grouped < 0) & (code > 0)).to(torch.uint8) << 3
    code = code.flatten(-2)
    return Packed(NVFP4, code[..., 0::2] | (code[..., 1::2] << 4), scale, scale_2.float())


def decode_fp8_blocks(weight: Tensor, scale: Tensor) -> Tensor:
    """E4M3 [..., out, in] and a scale per tile [..., out/128, in/128] to float32."""
    out, wide = weight.shape[-2:]
    spread = scale.float().repeat_interleave(FP8_TILE, -2).repeat_interleave(FP8_TILE, -1)
    return weight.float() * spread[..., :out, :wide]


def encode_fp8_blocks(values: Tensor, dtype: torch.dtype = torch.bfloat16) -> Packed:
    """Values [..., out, in] in fp8_blocks, with scales of `dtype`."""
    out, wide = values.shape[-2:]
    padded = F.pad(values.float(), (0, -wide % FP8_TILE, 0, -out % FP8_TILE))
    down, across = padded.shape[-2] // FP8_TILE, padded.shape[-1] // FP8_TILE
    tiles = padded.reshape(*padded.shape[:-2], down, FP8_TILE, across, FP8_TILE)
    scale = tiles.abs().amax((-3, -1)) / _FP8_MOST
    scale = torch.where(scale > 0, scale, 1.0).to(dtype)
    spread = scale.float()[..., :, None, :, None]
    codes = _to_fp8(tiles / spread).flatten(-4, -3).flatten(-2)
    return Packed(FP8_BLOCKS, codes[..., :out, :wide].to(FP8).contiguous(), scale)


def decode_fp8(weight: Tensor, scale: Tensor) -> Tensor:
    """E4M3 [..., out, in] and its one scale, [..., 1] with a batch, to float32."""
    return weight.float() * scale.float().reshape(*weight.shape[:-2], 1, 1)


def encode_fp8(values: Tensor, dtype: torch.dtype = torch.bfloat16) -> Packed:
    """Values [out, in] in fp8, with a scale [1] of `dtype`."""
    scale = values.float().abs().amax().reshape(1) / _FP8_MOST
    scale = torch.where(scale > 0, scale, 1.0).to(dtype)
    return Packed(FP8_TENSOR, _to_fp8(values.float() / scale.float()).to(FP8), scale)


def decode_mxfp8(weight: Tensor, scale: Tensor) -> Tensor:
    """E4M3 [..., out, in] and exponents uint8 or E8M0 [..., out, in/32] to float32."""
    grouped = _groups(weight.float(), MXFP8_GROUP)
    return (grouped * _power(scale.view(torch.uint8))[..., None]).flatten(-2)


def encode_mxfp8(values: Tensor) -> Packed:
    """Values [..., out, in] in mxfp8, with exponents as uint8."""
    grouped = _groups(values.float(), MXFP8_GROUP)
    _, exponent = torch.frexp(grouped.abs().amax(-1))
    scale = (exponent - 1 - 8 + 127).clamp(0, 254).to(torch.uint8)
    codes = _to_fp8(grouped / _power(scale)[..., None]).to(FP8)
    return Packed(MXFP8, codes.flatten(-2), scale)


def decode_csf(fixed: Tensor, exceptions: Tensor) -> Tensor:
    """The E4M3 scales [R, C] behind CSF's two tensors.

    fixed uint8 [R/16, 16 + 16 * C/2]: of every 16 rows first a base byte each, then their codes,
    two a byte, low half first; a scale's byte is base + code. exceptions uint32 [n]: the byte in
    the high 8 bits replaces that at the place, row by row, in the low 24.
    """
    slabs, width = fixed.shape if fixed.dim() == 2 else (0, 0)
    if fixed.dtype != torch.uint8 or width % _CSF_SLAB or width < 2 * _CSF_SLAB:
        raise ModelError(f"CSF scales of shape {tuple(fixed.shape)} cannot be decoded.", HINT)
    if exceptions.dtype != torch.uint32 or exceptions.dim() != 1:
        raise ModelError(f"CSF exceptions are {exceptions.dtype}, not 32-bit words.", HINT)
    rows, columns = slabs * _CSF_SLAB, 2 * (width // _CSF_SLAB - 1)
    base = fixed[:, :_CSF_SLAB].reshape(rows, 1).short()
    codes = fixed[:, _CSF_SLAB:].reshape(rows, columns // 2)
    plane = base + torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    words = exceptions.view(torch.int32).long() & 0xFFFFFFFF
    places = words & (_CSF_PLACES - 1)
    if bool((plane > 255).any()) or bool((places >= rows * columns).any()):
        raise ModelError("CSF scales name bytes or places that do not exist.", HINT)
    if bool((places[1:] <= places[:-1]).any()):
        raise ModelError("CSF scales list their exceptions out of order.", HINT)
    plane.view(-1)[places] = (words >> 24).short()
    return plane.to(torch.uint8).view(FP8)


def encode_csf(scale: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 scales [R, C] to CSF's fixed and exceptions; R a multiple of 16, C even."""
    plane = scale.view(torch.uint8).long()
    rows, columns = plane.shape
    if rows % _CSF_SLAB or columns % 2 or plane.numel() > _CSF_PLACES:
        raise ValueError(f"scales of shape {(rows, columns)} have no CSF form")
    counts = torch.zeros(rows, 257, dtype=torch.long)
    counts[:, 1:].scatter_add_(1, plane, torch.ones_like(plane))
    below = counts.cumsum(1)
    base = (below[:, _CSF_WINDOW:] - below[:, :-_CSF_WINDOW]).argmax(1, keepdim=True)
    codes = plane - base
    outside = (codes < 0) | (codes >= _CSF_WINDOW)
    codes = codes.masked_fill(outside, 0)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    slabs = rows // _CSF_SLAB
    fixed = torch.cat([base.reshape(slabs, -1), packed.reshape(slabs, -1)], dim=1)
    places = outside.reshape(-1).nonzero().reshape(-1)
    words = (plane.reshape(-1)[places] << 24) | places
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    return fixed.to(torch.uint8), signed.view(torch.uint32)


@cache
def _e2m1(device: torch.device) -> Tensor:
    """The values of the sixteen codes."""
    return torch.tensor([*_E2M1, *(-code for code in _E2M1)], device=device)


def _groups(values: Tensor, size: int) -> Tensor:
    """[..., in] to [..., in/size, size]."""
    return values.reshape(*values.shape[:-1], -1, size)


def _to_fp8(values: Tensor) -> Tensor:
    """Within the range of E4M3, which would else turn into no number."""
    return values.clamp(-_FP8_MOST, _FP8_MOST)


def _power(exponent: Tensor) -> Tensor:
    """E8M0 bytes to float32: 2 to the power of byte - 127, exactly."""
    bits = exponent.to(torch.int32)
    return torch.where(bits == 0, 1 << 22, bits << 23).to(torch.int32).view(torch.float32)


def _rows(tensor: Tensor, ids: Tensor) -> Tensor:
    if tensor.dtype == FP8:
        return tensor.view(torch.uint8)[ids].view(FP8)
    return tensor[ids]
