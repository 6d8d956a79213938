"""The tiny vocabulary, with columns that no token has."""

from __future__ import annotations

from pathlib import Path

import pytest

from flarechat.engine.grammar import Vocabulary
from flarechat.engine.text.tokenizer import Tokenizer, json_from_gguf
from tests.models import tiny

EOS = 2
SPARE = 5


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    tokenizer = Tokenizer(json_from_gguf(tiny.tokenizer_metadata(), Path("tiny.gguf")))
    return Vocabulary(tokenizer, tokenizer.vocabulary + SPARE, (EOS,))
