"""Text that cannot drive a terminal, whatever it is cut into."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flarechat.textsafe import spelt_out, strip_controls, well_formed

CONTROLS = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))} - {"\n", "\t"}
texts = st.text(alphabet=st.sampled_from(["a", "\x1b", "[", "\n", "\t", "\r", "\x9b", "é", "🦊"]))


@given(texts)
def test_no_control_is_left_and_nothing_else_is_lost(text: str) -> None:
    expected = "".join(char for char in text if char not in CONTROLS)

    assert expected == strip_controls(text)


@given(st.lists(texts))
def test_pieces_may_be_cleaned_one_by_one(pieces: list[str]) -> None:
    whole = strip_controls("".join(pieces))

    assert whole == "".join(strip_controls(piece) for piece in pieces)


def test_every_control_character_is_stripped() -> None:
    every = "".join(map(chr, range(0xA1)))

    assert CONTROLS.isdisjoint(strip_controls(every))
    assert "\t\n" == strip_controls(every)[:2]


def test_a_lone_surrogate_becomes_a_character_that_can_be_encoded() -> None:
    assert b"a?b" == well_formed("a\udc80b").encode()


def test_what_turns_or_hides_text_is_spelt_out_and_joiners_stay() -> None:
    assert "rm \\u202efdp.exe\\u2066 a\\u200bb" == spelt_out("\x1brm \u202efdp.exe\u2066 a\u200bb")
    assert "\\ufeffa\\u2028" == spelt_out("\ufeffa\u2028")
    assert "می\u200cخواهم 👩\u200d🚀 é" == spelt_out("می\u200cخواهم 👩\u200d🚀 é")
