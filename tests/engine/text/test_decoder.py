"""Decoding as it comes is decoding at once, cut anywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flarechat.engine.text.decoder import IncrementalDecoder
from flarechat.engine.text.tokenizer import Tokenizer
from tests.engine.text.test_tokenizer import sentencepiece
from tests.models import tiny


def test_a_character_comes_with_its_last_byte(tokenizer: Tokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer)
    llama = tokenizer.encode("🦙")

    assert 4 == len(llama)
    assert ["", "", "", "🦙", "a"] == [decoder.push(t) for t in [*llama, *tokenizer.encode("a")]]
    assert "" == decoder.flush()


def test_an_unfinished_character_is_replaced_only_at_the_end(tokenizer: Tokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.push(token) for token in tokenizer.encode("🦙")[:3]]

    assert ["", "", ""] == pieces
    assert "\ufffd" == decoder.flush()
    assert "" == decoder.flush()


def test_bytes_that_make_no_character_are_replaced_once_that_is_certain(
    tokenizer: Tokenizer,
) -> None:
    decoder = IncrementalDecoder(tokenizer)
    first, second, _, _ = tokenizer.encode("🦙")

    assert ["", "", "\ufffdh"] == [
        decoder.push(token) for token in (first, second, *tokenizer.encode("h"))
    ]


def test_control_tokens_and_unknown_ids_say_nothing(tokenizer: Tokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer)

    assert ["", "", ""] == [decoder.push(token) for token in (1, 2, 10**6)]


@given(text=st.text())
def test_any_text_comes_whole(tokenizer: Tokenizer, text: str) -> None:
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.push(token) for token in tokenizer.encode_plain(text)]

    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert text == "".join(pieces) + decoder.flush()


@given(tokens=st.lists(st.integers(0, len(tiny.vocabulary()) + 3), max_size=60))
def test_any_tokens_add_up_to_the_whole_decoding(tokenizer: Tokenizer, tokens: list[int]) -> None:
    decoder = IncrementalDecoder(tokenizer)
    pieces = "".join(decoder.push(token) for token in tokens) + decoder.flush()

    assert tokenizer.decode(tokens) == pieces


@given(tokens=st.lists(st.integers(0, 261), max_size=30))
def test_the_first_space_of_sentencepiece_is_dropped_once(tokens: list[int]) -> None:
    tokenizer = sentencepiece()
    decoder = IncrementalDecoder(tokenizer)
    pieces = "".join(decoder.push(token) for token in tokens) + decoder.flush()

    assert tokenizer.decode(tokens) == pieces
