"""Kernels run in Triton's interpreter; the root conftest asks for it, before any import."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
