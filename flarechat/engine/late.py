"""Leaves a part of torch out until somebody asks for it: a start need not wait for it, nor keep it.

Owns which part. Must be called before torch is imported.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

# How torch's compilers and tensors without memory find shapes; nothing here has either.
SHAPES = "torch._meta_registrations"


def leave_out(name: str = SHAPES) -> None:
    """Let an import of the module `name` find one that stands in for it, which loads the true one
    when an attribute is asked for."""
    if name in sys.modules:
        return

    def ask(attribute: str) -> Any:
        # Whoever looks through all modules asks for these.
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules[name] is standing_in:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    standing_in = ModuleType(name)
    standing_in.__getattr__ = ask  # type: ignore[method-assign]
    sys.modules[name] = standing_in
