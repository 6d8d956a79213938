"""Markdown as content: nothing lost, nothing interpreted, finished blocks never change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flarechat.ui.format import ASCII
from flarechat.ui.markdown import blocks, code_blocks, layout, plain, split_finished

LINES = st.sampled_from(
    [
        "",
        "word",
        "# title",
        "- item",
        "  more",
        "1. one",
        "```python",
        "```",
        "~~~",
        "> said",
        "---",
    ]
)
TEXTS = st.lists(LINES, max_size=14).map("\n".join)


def drawn(text: str, width: int = 40) -> list[str]:
    return [line.rstrip() for line in layout(blocks(text), width).plain.split("\n")]


@given(TEXTS, st.data())
def test_what_is_finished_stays_finished_as_the_text_grows(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))

    assert split_finished(text[:cut]) <= split_finished(text)


@given(st.text(max_size=200), st.integers(1, 60))
def test_any_text_can_be_drawn_at_any_width(text: str, width: int) -> None:
    for parts in (blocks(text), blocks(text, ASCII, colour=False), plain(text)):
        layout(parts, width)


def test_blocks_finish_at_a_blank_line_or_a_closing_fence_but_not_inside_one() -> None:
    assert 0 == split_finished("one paragraph\n\n")
    assert 15 == split_finished("one paragraph\n\nt")
    assert 0 == split_finished("```\ncode\n\nmore")
    assert 13 == split_finished("```\ncode\n```\n")
    assert 0 == split_finished("- item\n\n  its second paragraph")


def test_lists_hang_their_lines_and_keep_their_numbers() -> None:
    text = "3. a long item that has to wrap somewhere in the middle\n4. next\n   - nested"

    assert [
        "3. a long item that has to wrap",
        "   somewhere in the middle",
        "4. next",
        "   • nested",
    ] == drawn(text, 34)


def test_tables_align_and_give_way_to_the_width() -> None:
    table = "| name | value |\n|---|---|\n| a | 1 |\n| a much longer name | 22 |"

    assert ["name               │ value", "───────────────────┼──────"] == drawn(table)[:2]
    assert all(len(line) <= 20 for line in drawn(table, 20))


def test_code_keeps_its_spaces_and_folds_instead_of_wrapping() -> None:
    assert [" python", " def f():", "     return 1"] == drawn(
        "```python\ndef f():\n    return 1\n```"
    )
    assert [" aaaaaaaa", " aaaa"] == drawn("```\n" + "a" * 12 + "\n```", 10)


def test_markup_and_html_are_shown_as_they_stand() -> None:
    assert ["[bold red]x[/] <b>y</b>"] == drawn("[bold red]x[/] <b>y</b>")


def test_a_link_says_where_it_leads() -> None:
    assert ["see here (http://a.b)"] == drawn("see [here](http://a.b)")


def test_code_blocks_are_found_in_order_with_any_fence() -> None:
    text = "```py\na\n```\ntext\n\n~~~\nb\nc\n~~~\n\n    d\n"

    assert ["a", "b\nc", "d"] == code_blocks(text)
