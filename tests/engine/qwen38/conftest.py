"""The tiny reference model, for tests that compute and never train."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from tests.engine.qwen38.tiny import reference


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def of() -> Qwen4ExpForCausalLM:
    return reference()
