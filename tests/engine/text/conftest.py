"""The tiny tokenizer, built once; laws are checked without a clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from flarechat.engine.text.tokenizer import Tokenizer, json_from_gguf
from tests.models import tiny

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(json_from_gguf(tiny.tokenizer_metadata(), Path("tiny.gguf")))
