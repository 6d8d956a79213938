"""Token ids from GGUF keys, checked by hand and against an independent reader."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarechat.engine.text.tokenizer import Tokenizer, json_from_gguf
from flarechat.errors import ModelError
from tests.models import tiny

SAMPLES = (
    "hello the hell in a",
    "  the\n\n\tthe 1234 v2.0 ½ ٣",
    "don't we'll I'M naïve café",
    "漢字かな交じり 🦙👩‍👩‍👧 \u200b\ufeff",
    "<|im_start|>user\nhello<|im_end|>\n",
    "x" * 300,
    "",
)


def build(**changes: Any) -> Tokenizer:
    return Tokenizer(json_from_gguf({**tiny.tokenizer_metadata(), **changes}, Path("tiny.gguf")))


def ids(*names: str) -> list[int]:
    tokens = tiny.vocabulary()
    return [tokens.index(name) for name in names]


def test_merges_digits_and_control_tokens_make_the_expected_ids(tokenizer: Tokenizer) -> None:
    assert ids("hello", "Ġthe") == tokenizer.encode("hello the")
    assert ids("1", "2", "Ġ", "3") == tokenizer.encode("12 3")
    assert ids("<|im_start|>", "in", "<|im_end|>") == tokenizer.encode("<|im_start|>in<|im_end|>")
    assert ids("Ã", "©") == tokenizer.encode("é")


def test_plain_encoding_has_no_control_tokens(tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode_plain("<|im_end|>")

    assert ids(*"<|im_end|>") == plain
    assert ids("<|im_end|>") == tokenizer.encode("<|im_end|>")


def test_added_tokens_that_steer_nothing_are_tokens_in_people_s_text_too() -> None:
    kinds = tiny.tokenizer_metadata()["tokenizer.ggml.token_type"]
    kinds[0] = 4
    tokenizer = build(**{"tokenizer.ggml.token_type": kinds})

    assert [0] == tokenizer.encode_plain("<|endoftext|>")
    assert "<|endoftext|>" == tokenizer.decode([0])
    assert {"<|im_start|>", "<|im_end|>"} == set(tokenizer.control)


def test_the_pieces_around_control_tokens_add_up(tokenizer: Tokenizer) -> None:
    text = "a<|im_start|>b<|im_end|><|im_endX"

    assert [
        ("a", None),
        ("<|im_start|>", 1),
        ("b", None),
        ("<|im_end|>", 2),
        ("<|im_endX", None),
    ] == (tokenizer.split_control(text))
    assert [] == tokenizer.split_control("")


@given(text=st.text())
def test_any_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert text == tokenizer.decode(tokenizer.encode_plain(text))


@given(tokens=st.lists(st.integers(0, len(tiny.vocabulary()) + 3)))
def test_any_ids_decode_as_the_library_decodes_them(
    tokenizer: Tokenizer, tokens: list[int]
) -> None:
    known = [token for token in tokens if token < tokenizer.vocabulary]
    expected = tokenizer._backend.decode(known, skip_special_tokens=True)

    assert expected == tokenizer.decode(tokens)


def test_tokens_are_shown_as_text_and_control_tokens_as_their_literals(
    tokenizer: Tokenizer,
) -> None:
    assert [" the", "<|im_end|>", "\ufffd"] == [
        tokenizer.token(token) for token in ids("Ġthe", "<|im_end|>", "Ã")
    ]
    assert "" == tokenizer.token(10**6)
    assert len(tiny.vocabulary()) == tokenizer.vocabulary


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "in 123", ["in", "Ġ123"]),
        ("smollm", "in 123", ["in", "Ġ", "1", "2", "3"]),
        ("qwen2", "in 123", ["in", "Ġ", "1", "2", "3"]),
        ("llama-bpe", "in 12345", ["in", "Ġ", "123", "45"]),
        ("llama-bpe", "(in)\n\n\nIN'S", ["(in", ")ĊĊĊ", "IN", "'S"]),
        ("smollm", "(in)\n\n\nIN'S", ["(", "in", ")", "ĊĊ", "Ċ", "IN", "'", "S"]),
    ],
)
def test_every_splitting_rule_cuts_where_its_family_does(
    pre: str, text: str, pieces: list[str]
) -> None:
    tokenizer = build(**{"tokenizer.ggml.pre": pre})
    cut = tokenizer._backend.pre_tokenizer.pre_tokenize_str(text)

    assert pieces == [piece for piece, _ in cut]


def test_qwen_composes_characters_first() -> None:
    decomposed, composed = "e\u0301", "\u00e9"

    assert build(**{"tokenizer.ggml.pre": "qwen2"}).encode(composed) == (
        build(**{"tokenizer.ggml.pre": "qwen2"}).encode(decomposed)
    )
    assert build().encode(composed) != build().encode(decomposed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.model": "t5"}, "tokenizer of the unknown kind 't5'"),
        ({"tokenizer.ggml.model": None}, "unknown kind None"),
        ({"tokenizer.ggml.pre": "viking"}, "unknown rule 'viking'"),
        ({"tokenizer.ggml.tokens": []}, "gaps or repeats"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "gaps or repeats"),
        ({"tokenizer.ggml.token_type": [1]}, "gaps or repeats"),
        ({"tokenizer.ggml.merges": ["h e l"]}, "merges 'h e l'"),
        ({"tokenizer.ggml.merges": ["h zz"]}, "merges 'h zz'"),
    ],
)
def test_a_vocabulary_that_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        build(**changes)

    assert "tiny.gguf" in caught.value.message


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": 3}'])
def test_a_tokenizer_file_of_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="cannot be built"):
        Tokenizer(text)


def sentencepiece() -> Tokenizer:
    """A tokenizer in the form llama 2 has: ▁ for spaces, byte tokens, one space stripped."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    return Tokenizer(json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": n, "content": words[n], "special": True, "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": False} for n in range(3)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>",
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
            "byte_fallback": True, "vocab": {w: n for n, w in enumerate(words)},
            "merges": [["▁", "a"]],
        },
    }))  # fmt: skip


@given(text=st.text(st.sampled_from("a 🦙é")))
def test_the_sentencepiece_form_decodes_as_the_library_decodes_it(text: str) -> None:
    tokenizer = sentencepiece()
    tokens = tokenizer.encode(text)

    assert tokenizer._backend.decode(tokens, skip_special_tokens=True) == tokenizer.decode(tokens)


def test_a_thread_that_encodes_plain_text_changes_no_control_token_of_another() -> None:
    tokenizer = build()
    literal, number = next(iter(tokenizer.control.items()))
    backend, inside = tokenizer._backend, threading.Event()

    class Slow:
        """The library, slow while control tokens are text."""

        encode_special_tokens = False

        def encode(self, text: str, *, add_special_tokens: bool) -> Any:
            if self.encode_special_tokens and threading.current_thread() is plain:
                inside.set()
                time.sleep(0.1)
            backend.encode_special_tokens = self.encode_special_tokens
            return backend.encode(text, add_special_tokens=add_special_tokens)

    tokenizer._backend = Slow()
    plain = threading.Thread(target=tokenizer.encode_plain, args=("a",))
    plain.start()
    inside.wait()

    assert [number] == tokenizer.encode(literal)
    plain.join()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_ids_are_those_transformers_makes_of_the_file(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    written = tiny.write(tmp_path / "tiny.gguf").path
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file=written.name)
    mine = build()

    for text in SAMPLES:
        assert theirs.encode(text, add_special_tokens=False) == mine.encode(text)
