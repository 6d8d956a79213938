"""Text, stop and the tokens that stand, for every cut of the bytes into tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.engine.text.answer_text import AnswerText
from flarechat.engine.text.tokenizer import Tokenizer
from tests.engine.text.cuts import all_cuts, cut
from tests.engine.text.test_stops import oracle


class Pieces:
    """A vocabulary of these bytes; no other id says anything."""

    strips_first_space = False

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token] if token < len(self._pieces) else b""


def text_of(
    pieces: Sequence[bytes], stops: Sequence[str], silent: Sequence[int] = ()
) -> AnswerText:
    return AnswerText(cast(Tokenizer, Pieces(pieces)), stops, silent)


# What any of these goes on with is certain to stand behind it.
_ENDS = [b"A", *(bytes([byte]) * 3 for byte in (0x80, 0x90, 0xA0, 0xBF))]


def certain(prefix: bytes) -> str:
    """The text that these bytes make whatever follows."""
    texts = [(prefix + end).decode(errors="replace") for end in _ENDS]
    same = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return "".join(column[0] for column in same)


def by_a_plain_loop(pieces: Sequence[bytes], stops: list[str]) -> tuple[int, str, str | None]:
    """Tokens that stand, the text and the stop: every beginning is decoded and searched anew."""
    for count in range(1, len(pieces) + 1):
        text, stop = oracle(certain(b"".join(pieces[:count])), stops)
        if stop is not None:
            return count, text, stop
    return len(pieces), *oracle(b"".join(pieces).decode(errors="replace"), stops)


def by_rounds(
    pieces: Sequence[bytes], stops: list[str], round_of: int
) -> tuple[int, str, str | None]:
    """The same by one that gets so many tokens at a time."""
    read, kept, text = text_of(pieces, stops), 0, ""
    for start in range(0, len(pieces), round_of):
        tokens = range(start, min(len(pieces), start + round_of))
        ahead = read.copy()
        expected = ahead.read(tokens)
        stands, said = read.read(tokens)
        assert (expected, ahead.stop) == ((stands, said), read.stop)
        kept, text = kept + stands, text + said
        if read.stop is not None:
            break
    return kept, text + read.flush(), read.stop


CASES: list[tuple[bytes, list[str]]] = [
    ("né🦙é!".encode(), ["🦙é", "é!"]),
    ("日本、日".encode(), ["本、"]),
    ("e\u0301 te\u0301".encode(), ["e\u0301", "\u0301 t"]),
    (b"a\xff\xf0\x9f\xa6 \xc3", ["\ufffd\ufffd"]),
    (b"a\xe2\x82b\xed\xa0\x80", ["\ufffdb\ufffd"]),
    (b"x\xf0\x9f\xa6", ["\ufffd"]),
    (b"ab\xc3\xa9\xa9cd", ["é\ufffdc", "d"]),
    ("\ufffd \ufffd\ufffd".encode(), ["\ufffd\ufffd"]),
    (b"one\n\nand\n", ["\n\n", "\n\n\n"]),
]


@pytest.mark.parametrize(("whole", "stops"), CASES)
def test_every_way_to_cut_bytes_into_tokens(whole: bytes, stops: list[str]) -> None:
    for pieces in all_cuts(whole):
        expected = by_a_plain_loop(pieces, stops)
        for round_of in (1, 3, len(whole)):
            assert expected == by_rounds(pieces, stops, round_of), pieces


_BYTES = st.sampled_from(
    [b"a", b"b", b" ", "é".encode(), "本".encode(), "🦙".encode(), b"\xf0\x9f", b"\x80", b"\xe2"]
)
_STOPS = st.lists(st.text(st.sampled_from("ab é本🦙\ufffd"), min_size=1, max_size=4), max_size=4)


@settings(max_examples=200)
@given(st.lists(_BYTES, max_size=24), _STOPS, st.lists(st.integers(1, 60), max_size=20),
       st.integers(1, 8))  # fmt: skip
def test_long_text_cut_anywhere(
    bits: list[bytes], stops: list[str], places: list[int], round_of: int
) -> None:
    pieces = cut(b"".join(bits), places)

    assert by_a_plain_loop(pieces, stops) == by_rounds(pieces, stops, round_of)


def test_bytes_cut_anywhere_make_the_text_of_the_whole() -> None:
    """Every sequence of three bytes from the edges of what UTF-8 allows."""
    edges = b"\x41\x80\x8f\x90\x9f\xa0\xbf\xc0\xc2\xe0\xe1\xed\xf0\xf1\xf4\xf5"
    for three in itertools.product(edges, repeat=3):
        whole = bytes(three)
        for pieces in all_cuts(whole):
            read = text_of(pieces, ())
            _, said = read.read(range(len(pieces)))

            assert certain(whole) == said
            assert whole.decode(errors="replace") == said + read.flush()


def test_a_token_that_completes_a_stop_stands_whole() -> None:
    read = text_of([b"one", b" two, th", b"ree"], ["two"])

    assert (2, "one ") == read.read([0, 1, 2])
    assert (0, "") == read.read([2])
    assert ("", "two") == (read.flush(), read.stop)


def test_tokens_that_end_an_answer_say_nothing() -> None:
    read = text_of([b"a", b"<end>"], ["<end>"], silent=[1])

    assert (3, "a") == read.read([0, 1, 9])
    assert ("", None) == (read.flush(), read.stop)


def test_what_was_said_before_goes_on() -> None:
    pieces = [b"a stop, \xc3", b"\xa9 st", b"op"]
    read = text_of(pieces, ["stop"])

    assert "a stop, " == read.hear([0])
    assert (1, "é ") == read.read([1])
    assert (1, "") == read.copy().read([2, 0])
    assert (1, "") == read.read([2])
    assert "stop" == read.stop
