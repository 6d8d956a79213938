"""Which variants of the kernels some work asks Triton for, found without compiling any.

Owns the dry run: work is done with every launch left out and every new tensor full of zeros, so
that what plain calls make of the results goes well. A variant is told in Triton's own form, from
which another process can compile it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.compiler import make_backend
from triton.runtime.cache import get_cache_key, get_cache_manager

Work = Callable[[], object]
_MODULES = (
    "launch", "largest", "draws", "products", "qkv", "tall", "verify_attention", "lookups",
    "filter", "chain", "commit",
)  # fmt: skip
_EMPTY = {
    torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default, torch.ops.aten.new_empty.default,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel by its module and name, and what it is specialised for, as `preload` takes it."""

    module: str
    name: str
    data: str

    @property
    def kernel(self) -> Any:
        """The function itself."""
        return getattr(import_module(self.module), self.name)


def settle_keys() -> None:
    """Have every kernel's key in Triton's folder known, in one order and before any is compiled.

    A version of Triton keeps a kernel under another key if one that it calls was keyed before it,
    so that neither another process nor the next start would find what is there.
    """
    for name in _MODULES:
        module = import_module(f"{__package__}.{name}")
        for value in vars(module).values():
            if isinstance(value, triton.JITFunction):
                assert value.cache_key


def asked_for(works: Iterable[Work]) -> list[Variant]:
    """The variants that works launch and this process has not compiled, each once, in order."""
    found, planted = dict[Variant, None](), list[tuple[dict[str, Any], str]]()

    def note(*, fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002
        found[Variant(fn.module, fn.name, compile["specialization_data"])] = None
        made = fn.jit_function.device_caches[compile["device"]][0]
        made[compile["key"]] = _Nothing()
        planted.append((made, compile["key"]))
        return True

    before = triton.knobs.runtime.jit_cache_hook
    triton.knobs.runtime.jit_cache_hook = note
    try:
        with _Zeros():  # type: ignore[no-untyped-call]
            for work in works:
                work()
    finally:
        triton.knobs.runtime.jit_cache_hook = before
        for made, key in planted:
            made.pop(key, None)
    return list(found)


def stored(variant: Variant) -> bool:
    """Whether Triton's folder has it, so that it need only be read."""
    known, kernel = list[bool](), variant.kernel

    def look(source: Any, target: Any, options: dict[str, Any], **_: object) -> None:
        backend = make_backend(target)
        chosen = backend.parse_options(dict(options))
        key = get_cache_key(source, backend, chosen, get_cache_invalidating_env_vars())
        folder = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
        known.append(folder.get_group(f"{source.name[:150]}.json") is not None)

    device = triton.runtime.driver.active.get_current_device()
    made = kernel.device_caches[device][0]
    usual, kernel.compile = kernel.compile, look
    try:
        kernel.preload(variant.data)
    finally:
        kernel.compile = usual
        made.pop(json.loads(variant.data)["key"], None)
    return known[0]


class _Nothing:
    """In place of a compiled kernel: its launch does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: object) -> None:
        """There is no launch to tell of."""

    def run(self, *_: object) -> None:
        """Launch nothing."""


class _Zeros(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """New tensors are full of zeros: tokens, counts and places that are valid everywhere."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func in _EMPTY else made
