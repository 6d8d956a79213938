"""The default model, the real file: what it says, and that its ids are the right ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.engine.text.template import ChatTemplate, encode_chat
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.engine.weights import load_checkpoint
from flarechat.models import inspection
from flarechat.models.catalog import SMOLLM2
from flarechat.models.gguf import Gguf
from flarechat.protocol import Message
from tests.engine.text.test_tokenizer import SAMPLES

pytestmark = pytest.mark.network


def test_the_pulled_file_is_the_pinned_one(smollm2: Path) -> None:
    seen = inspection.inspect(str(smollm2))

    assert SMOLLM2.gguf_sha256 == seen.digest
    assert ("llama", 134_515_008, 8192, 49_152) == (
        seen.architecture, seen.parameters, seen.context, seen.vocabulary,
    )  # fmt: skip
    assert {"Q4_1": 210, "F32": 61, "Q8_0": 1} == seen.tensor_types
    assert SMOLLM2.recommended == seen.recommended


def test_its_tables_are_read_in_a_moment(smollm2: Path) -> None:
    began = time.thread_time()
    Gguf(smollm2)

    assert time.thread_time() - began < 0.5


@pytest.mark.slow
def test_it_is_converted_once_and_mapped_after(smollm2: Path) -> None:
    first = load_checkpoint(smollm2, paths.cache_dir(), lambda *_: None, supported=("llama",))
    began = time.thread_time()
    second = load_checkpoint(smollm2, paths.cache_dir(), lambda *_: None, supported=("llama",))
    taken = time.thread_time() - began

    assert taken < 0.5
    assert SMOLLM2.title == first.name == second.name
    assert 134_515_008 == sum(tensor.numel() for tensor in second.tensors.values())
    assert (2,) == second.eos_token_ids


def test_a_chat_begins_with_the_model_s_own_system_prompt_unless_given_one(smollm2: Path) -> None:
    gguf = Gguf(smollm2).metadata
    template = ChatTemplate(gguf["tokenizer.chat_template"])
    user = Message(role="user", content="hi")
    system = Message(role="system", content="be brief")

    assert template.render([user]).startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n" in (
        template.render([system, user])
    )
    assert "helpful AI" not in template.render([system, user])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_its_ids_are_those_transformers_makes_of_the_file(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    from flarechat.engine.text.tokenizer import json_from_gguf

    gguf = Gguf(smollm2).metadata
    mine = Tokenizer(json_from_gguf(gguf, smollm2))
    theirs = AutoTokenizer.from_pretrained(str(smollm2.parent), gguf_file=smollm2.name)
    sources = [path.read_text() for path in Path(__file__).parent.glob("*.py")]
    chat = [Message(role="user", content=text) for text in ("hi", "1 + 1 = ?")]
    template = ChatTemplate(gguf["tokenizer.chat_template"])

    # transformers leaves out the file's rule for digits, which only shows on other numerals.
    for text in (*SAMPLES, *sources):
        text = "".join(c for c in text if c.isascii() or not c.isnumeric())

        assert theirs.encode(text, add_special_tokens=False) == mine.encode(text)
    assert ["a", " ", "½"] == [mine.token(token) for token in mine.encode("a ½")]
    assert theirs.encode(template.render(chat), add_special_tokens=False) == (
        encode_chat(template, mine, chat)
    )
