"""The rows of an n-gram embedding, hundreds of millions of them, kept off the device.

Owns where rows lie and what fetches them. Which rows a token takes is the embedding's to say. Rows
stay as the checkpoint stores them until they are looked up: mapped files are read through the
operating system's own cache, and on a GPU recently used rows stay there too. Or the table lies in
pinned memory, which the GPU reads by itself.

A mapped table is looked up by the host, which waits for the ids; a pinned one is looked up by a
kernel and nothing is waited for, so only that can be part of a captured round.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from flarechat.engine import kernels
from flarechat.engine.memory import host_available
from flarechat.engine.weights.formats import FP8, NVFP4, Packed, decode_nvfp4

if TYPE_CHECKING:
    from flarechat.engine.kernels.rows import Addresses

CACHED_ROWS = 1 << 16


def pins(size: int, device: torch.device) -> bool:
    """Whether a table of `size` bytes is copied to pinned memory: for a GPU, if the host has twice
    the room."""
    return device.type == "cuda" and kernels.available() and 2 * size <= host_available()


class NgramTable:
    """Parts [rows, width] one after the other: floats, fp8 or nvfp4, as they are stored."""

    def __init__(
        self, parts: Sequence[Tensor | Packed], *, dtype: torch.dtype, device: torch.device,
        cached_rows: int | None = None, pinned: bool | None = None,
    ) -> None:  # fmt: skip
        """`cached_rows` stay on the device; None is CACHED_ROWS on a GPU and none on a CPU.

        `pinned` copies the table into pinned memory, as `pins` says if it is None.
        """
        weights = [part.weight if isinstance(part, Packed) else part for part in parts]
        self.kind = parts[0].kind if isinstance(parts[0], Packed) else ""
        self.width, self.stored = parts[0].shape[-1], weights[0].dtype
        self.dtype, self.device = dtype, device
        scales = [p.scale for p in parts if isinstance(p, Packed) and self.kind == NVFP4]
        if pinned is None:
            pinned = pins(sum(part.nbytes for part in weights + scales), device)
        self.host = HostRows(weights, scales, pinned=pinned)
        self.addresses = _addresses(self.host, device) if pinned else None
        self.factors = torch.tensor([_factor(part) for part in parts], device=device)
        if cached_rows is None:
            cached_rows = CACHED_ROWS if device.type == "cuda" and not pinned else 0
        self.cache = RowCache(cached_rows, self.host.row_bytes, device)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="ngram-rows")
        self._last: Rows | None = None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.host.ends[-1])

    @property
    def nbytes(self) -> int:
        """Bytes it takes on the device."""
        return self.cache.held.nbytes

    def gather(self, rows: Tensor) -> Tensor:
        """Rows int64 [..., heads] → side by side [..., heads * width], in the table's dtype."""
        return self.ahead(rows).wait()

    def ahead(self, rows: Tensor) -> Rows:
        """Begin to fetch rows int64 [..., heads], to be waited for when they are needed."""
        if self.addresses is not None:
            from flarechat.engine.kernels.rows import gather_rows

            stored, part = gather_rows(self.addresses, rows.reshape(-1))
            return Rows(self, rows.shape, part, lambda: stored)
        if self._last:
            self._last.land()  # its rows may be the next to leave the cache
        wanted = rows.reshape(-1).cpu().numpy()
        with self.soundly():
            part = torch.from_numpy(self.host.part_of(wanted)).to(self.device)
            self._last = Rows(self, rows.shape, part, self._fetch(wanted))
        return self._last

    @contextmanager
    def soundly(self) -> Iterator[None]:
        """A look-up that fails here leaves nothing behind: no rows that the cache counts as read
        and are not, and no error for the next look-up."""
        try:
            yield
        except BaseException:
            self._last = None
            self.cache.clear()
            raise

    def _fetch(self, wanted: np.ndarray) -> Callable[[], Tensor]:
        """Start reading; what is returned waits and brings the stored rows to the device."""
        distinct, back = np.unique(wanted, return_inverse=True)
        order = torch.from_numpy(back).to(self.device)
        if len(distinct) > len(self.cache.held):
            reading = self._reader.submit(self.host.read, distinct)
            return lambda: reading.result().to(self.device)[order]
        places, missing = self.cache.places(distinct)
        reading = self._reader.submit(self.host.read, distinct[missing])
        return lambda: self.cache.filled(places, missing, reading.result())[order]

    def decode(self, stored: Tensor, part: Tensor) -> Tensor:
        """Rows as stored, uint8 [n, row bytes], and their parts [n], to values [n, width]."""
        codes = stored[:, : self.host.code_bytes].contiguous()
        if not self.kind:
            return codes.view(self.stored).to(self.dtype)
        factors = self.factors[part]
        if self.kind == NVFP4:
            scales = stored[:, self.host.code_bytes :].contiguous().view(FP8)
            return decode_nvfp4(codes[:, None], scales[:, None], factors)[:, 0].to(self.dtype)
        return (codes.view(FP8).float() * factors[:, None]).to(self.dtype)


class Rows:
    """Rows under way."""

    def __init__(
        self, table: NgramTable, shape: torch.Size, part: Tensor, fetch: Callable[[], Tensor]
    ) -> None:
        self._table, self._shape, self._part, self._fetch = table, shape, part, fetch
        self._stored: Tensor | None = None

    def land(self) -> Tensor:
        """The stored rows, on the device."""
        if self._stored is None:
            with self._table.soundly():
                self._stored = self._fetch()
        return self._stored

    def wait(self) -> Tensor:
        """Their values [..., heads * width]."""
        values = self._table.decode(self.land(), self._part)
        return values.view(*self._shape[:-1], self._shape[-1] * self._table.width)


class HostRows:
    """The bytes of a table's parts in host memory: mapped from files, or pinned for a GPU."""

    def __init__(self, codes: Sequence[Tensor], scales: Sequence[Tensor], *, pinned: bool) -> None:
        def held(part: Tensor) -> Tensor:
            whole = part.view(torch.uint8)
            return whole.pin_memory() if pinned else whole

        self.codes, self.scales = [held(part) for part in codes], [held(part) for part in scales]
        self.code_bytes = self.codes[0].shape[1]
        self.row_bytes = self.code_bytes + (self.scales[0].shape[1] if scales else 0)
        self.ends = np.cumsum([len(part) for part in codes])

    def part_of(self, rows: np.ndarray) -> np.ndarray:
        """The part that each of the rows is in."""
        return np.searchsorted(self.ends, rows, side="right")

    def read(self, rows: np.ndarray) -> Tensor:
        """Rows as stored, uint8 [n, row bytes]: the codes, then nvfp4's scales."""
        out = torch.empty(len(rows), self.row_bytes, dtype=torch.uint8)
        part = self.part_of(rows)
        for number in np.unique(part).tolist():
            here = np.flatnonzero(part == number)
            first = self.ends[number] - len(self.codes[number])
            inside = torch.from_numpy(rows[here] - first)
            out[here, : self.code_bytes] = self.codes[number][inside]
            if self.scales:
                out[here, self.code_bytes :] = self.scales[number][inside]
        return out


class RowCache:
    """The rows used last, on the device; the host knows which ones they are."""

    def __init__(self, rows: int, row_bytes: int, device: torch.device) -> None:
        self.held = torch.empty(rows, row_bytes, dtype=torch.uint8, device=device)
        self._places: OrderedDict[int, int] = OrderedDict()

    def places(self, rows: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Room for distinct rows, no more than there is: places [n], and the indices of those
        whose bytes are still to be filled in."""
        missing = [index for index, row in enumerate(rows.tolist()) if row not in self._places]
        for row in np.delete(rows, missing).tolist():
            self._places.move_to_end(row)
        for row in rows[missing].tolist():
            full = len(self._places) == len(self.held)
            place = self._places.popitem(last=False)[1] if full else len(self._places)
            self._places[row] = place
        found = torch.tensor([self._places[row] for row in rows.tolist()])
        return found.to(self.held.device), np.array(missing, dtype=np.int64)

    def clear(self) -> None:
        """Count no row as held."""
        self._places.clear()

    def filled(self, places: Tensor, missing: np.ndarray, read: Tensor) -> Tensor:
        """Fill in what was missing; the rows at `places` [n, row bytes]."""
        fresh = places[torch.from_numpy(missing).to(places.device)]
        self.held[fresh] = read.to(self.held.device)
        return self.held[places]


def _addresses(host: HostRows, device: torch.device) -> Addresses:
    from flarechat.engine.kernels.rows import Addresses

    return Addresses.of(host.codes, host.scales, device)


def _factor(part: Tensor | Packed) -> float:
    """What the values of a part are multiplied with last."""
    if not isinstance(part, Packed):
        return 1.0
    return float(part.scale if part.scale_2 is None else part.scale_2)
