"""The tiny tokenizer, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from flarechat.engine.text.tokenizer import Tokenizer, json_from_gguf
from tests.models import tiny


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(json_from_gguf(tiny.tokenizer_metadata(), Path("tiny.gguf")))
