"""Thinking, answer and calls go to their channels, wherever the text is cut."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.engine.text.channels import ChannelRouter, Marks
from tests.engine.text.cuts import all_cuts, cut, quickest

THOUGHT = Marks("<think>", "</think>", first=True)
CALL = Marks("<tool_call>", "</tool_call>")
# Marks of one and two characters, which share some, so that short texts say much.
SHORT = Marks("<<", ">", first=True)
SHORT_CALLS = (None, Marks("<(", ")>"), Marks("(", ")"), Marks("((", first=True), Marks("<("))

Routed = tuple[dict[str, str], list[str], str | None]


def routed(
    pieces: Sequence[str], tool: Marks | None = None, *, thinks: bool = False,
    thought: Marks | None = THOUGHT,
) -> Routed:  # fmt: skip
    """The text of each channel, the calls, and what was said of one that is unclosed."""
    router = ChannelRouter(thought, tool, begun=thinks)
    said = [pair for piece in pieces for pair in router.push(piece)] + router.flush()
    channels: dict[str, str] = {}
    for channel, text in said:
        assert text
        channels[channel] = channels.get(channel, "") + text
    return channels, router.calls, router.unclosed


def reference(text: str, tool: Marks | None, thought: Marks | None, *, thinks: bool) -> Routed:
    """The same by searching the whole text. "\\0" stands where something was taken out."""
    thinking = bare = ""
    if thought is not None and not thinks and text.lstrip().startswith(thought.opening):
        text, thinks = text.lstrip().removeprefix(thought.opening), True
    if thought is not None and thinks:
        thinking, mark, text = text.partition(thought.closing)
        bare = "\0" if mark else ""
    calls: list[str] = []
    closed = True
    while tool is not None and closed and tool.opening in text:
        if tool.first and (calls or not text.lstrip().startswith(tool.opening)):
            break
        before, _, inside = text.partition(tool.opening)
        end = inside.find(tool.closing) if tool.closing else len(inside)
        closed, end = end >= 0, len(inside) if end < 0 else end + len(tool.closing)
        calls.append(tool.opening + inside[:end])
        bare, text = f"{bare}{before}\0", inside[end:]
    bare += text

    def once(run: re.Match[str]) -> str:
        inner = run.start() > 0 and run.end() < len(bare)
        return next(filter(None, run[0].split("\0")), "") if inner else ""

    answer = re.sub(r"\s*\0[\s\0]*", once, bare)
    said = {"thinking": thinking.strip(), "answer": answer, "tool": "".join(calls)}
    unclosed = None if closed else calls.pop()
    return {channel: text for channel, text in said.items() if text}, calls, unclosed


@pytest.mark.parametrize(
    ("text", "thinks", "channels"),
    [
        ("Hello <b> there.\n", False, {"answer": "Hello <b> there.\n"}),
        ("<think>\nHm. \n\n</think>\n\nYes.\n", False, {"thinking": "Hm.", "answer": "Yes.\n"}),
        ("\nHm. </th\n</think> \nYes.", True, {"thinking": "Hm. </th", "answer": "Yes."}),
        (" \n<think>so</think>a<think>b</think>", False,
         {"thinking": "so", "answer": "a<think>b</think>"}),
        ("no <think>mark</think>", False, {"answer": "no <think>mark</think>"}),
        ("still at it \n", True, {"thinking": "still at it"}),
        ("\n\n</think>\n\nAt once.", True, {"answer": "At once."}),
        ("  <thin", False, {"answer": "  <thin"}),
        ("done</think>\n ", True, {"thinking": "done"}),
        ("cut off</thi", True, {"thinking": "cut off</thi"}),
        (" \n", False, {"answer": " \n"}),
        ("", True, {}),
    ],
)  # fmt: skip
def test_thinking_goes_to_its_channel_without_the_marks(
    text: str, thinks: bool, channels: dict[str, str]
) -> None:
    for tool in (None, CALL):
        assert (channels, [], None) == routed([text], tool, thinks=thinks)
        assert (channels, [], None) == routed(list(text), tool, thinks=thinks)


ONE, TWO = "<tool_call>\n{1}\n</tool_call>", "<tool_call>{2}</tool_call>"


@pytest.mark.parametrize(
    ("text", "answer", "calls"),
    [
        (ONE, "", [ONE]),
        (f"\n {ONE}\n", "", [ONE]),
        (f"I look.\n\n{ONE}\n{TWO}\n\n", "I look.", [ONE, TWO]),
        (f"I look.\n\n{ONE} {TWO} Done. \n", "I look.\n\nDone. \n", [ONE, TWO]),
        (f"I look.{ONE}\n{TWO} Done.", "I look.\nDone.", [ONE, TWO]),
        (f"I look.{ONE}Done.", "I look.Done.", [ONE]),
        ("a <tool_call b", "a <tool_call b", []),
        ("a </tool_call> b", "a </tool_call> b", []),
    ],
)
def test_a_call_goes_out_as_it_is_and_blank_space_around_it_once(
    text: str, answer: str, calls: list[str]
) -> None:
    said = {"answer": answer, "tool": "".join(calls)}
    expected = {channel: text for channel, text in said.items() if text}

    assert (expected, calls, None) == routed([text], CALL)
    assert (expected, calls, None) == routed(list(text), CALL)


def test_the_marks_of_one_channel_mean_nothing_in_another() -> None:
    thought = f"<think>I could say {ONE}.</think>"
    call = "<tool_call><think>{</think> <tool_call>}</tool_call>"
    said = {"thinking": f"I could say {ONE}.", "answer": "a b", "tool": call}

    assert (said, [call], None) == routed([f"{thought}a{call} b"], CALL)
    assert ({"answer": f"x{thought}"}, [], None) == routed([f"x{thought}"])
    assert ({"answer": f"x {ONE}"}, [], None) == routed([f"x {ONE}"])


@pytest.mark.parametrize("end", ["", "</tool_", "<tool_call>"])
def test_a_call_that_was_not_closed_is_told(end: str) -> None:
    opened = f"<tool_call>\n{{1{end}"

    for pieces in ([f"So: {ONE} {opened}"], list(f"So: {ONE} {opened}")):
        said = {"answer": "So:", "tool": ONE + opened}
        assert (said, [ONE], opened) == routed(pieces, CALL)


def test_a_call_without_an_end_goes_to_the_end_and_one_that_is_first_begins_nowhere_else() -> None:
    call, text = '{"name": "now"}', 'as {"name": "now"}'
    marks = Marks('{"name"', first=True)

    assert ({"tool": call}, [call], None) == routed(list(f" \n{call}"), marks)
    assert ({"answer": text}, [], None) == routed(list(text), marks)
    said = {"thinking": "hm", "tool": call}
    assert (said, [call], None) == routed(list(f"hm</think>\n{call}"), marks, thinks=True)
    assert ({"answer": ' {"na'}, [], None) == routed([' {"na'], marks)
    assert ({"answer": "as", "tool": text[3:]}, [call], None) == routed(
        list(text), marks._replace(first=False)
    )


def test_of_two_first_marks_the_one_that_is_complete_first_counts() -> None:
    tool = Marks("<", ">", first=True)

    for pieces in all_cuts("<<x>"):
        assert ({"tool": "<<x>"}, ["<<x>"], None) == routed(pieces, tool, thought=SHORT)


@settings(max_examples=150)
@given(
    st.text(st.sampled_from("<>() a"), max_size=8), st.sampled_from(SHORT_CALLS), st.booleans(),
    st.sampled_from((SHORT, None)),
)  # fmt: skip
def test_every_way_to_cut_a_short_text_gives_what_searching_the_whole_gives(
    text: str, tool: Marks | None, thinks: bool, thought: Marks | None
) -> None:
    thinks = thinks and thought is not None
    expected = reference(text, tool, thought, thinks=thinks)

    for pieces in all_cuts(text):
        assert expected == routed(pieces, tool, thinks=thinks, thought=thought), pieces


_MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
_BITS = st.sampled_from(
    [*_MARKS, *_MARKS, "<", "</t", "<tool_", "nk>", " ", "\n", "\u3000", "a", "é", "🦙", ">"]
)


@settings(max_examples=300)
@given(st.lists(_BITS, max_size=16), st.booleans(), st.sampled_from((CALL, None)), st.data())
def test_any_cut_of_a_long_text_gives_what_searching_the_whole_gives(
    bits: list[str], thinks: bool, tool: Marks | None, data: st.DataObject
) -> None:
    text = "".join(bits)
    pieces = cut(text, data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    expected = reference(text, tool, THOUGHT, thinks=thinks)

    assert expected == routed([text], tool, thinks=thinks)
    assert expected == routed(pieces, tool, thinks=thinks)
    assert expected == routed(list(text), tool, thinks=thinks)


def test_what_is_pushed_is_final_and_little_is_held_back() -> None:
    router = ChannelRouter(THOUGHT, begun=True)

    assert [("thinking", "I see")] == router.push("I see </")
    assert [("thinking", " </b")] == router.push("b")
    assert "thinking" == router.channel
    assert [] == router.push("</think")
    assert [] == router.push(">\n")
    assert "answer" == router.channel
    assert [("answer", "Yes \n")] == router.push("Yes \n")
    assert [("answer", " <think")] == router.push(" <think")


def test_a_call_is_shown_while_it_is_said() -> None:
    router = ChannelRouter(THOUGHT, CALL)

    assert [("answer", "So:")] == router.push("So: <tool_")
    assert [("tool", "<tool_call>{")] == router.push("call>{</to")
    assert "tool" == router.channel
    assert [("tool", "</tom")] == router.push("m")
    assert "<tool_call>{</tom" == router.unclosed
    assert [("tool", "}</tool_call>"), ("answer", " x")] == router.push("}</tool_call>\nx")
    assert (["<tool_call>{</tom}</tool_call>"], None) == (router.calls, router.unclosed)


@pytest.mark.parametrize("text", ["\n", "<tool_call ", "</tool_call ", "a "])
@pytest.mark.parametrize("begun", [True, False])
def test_a_push_costs_the_same_however_much_was_said(text: str, begun: bool) -> None:
    router = ChannelRouter(THOUGHT, CALL, begun=begun)
    router.push(text * 2)
    little = quickest(router.push, text)
    router.push(text * (800_000 // len(text)))

    assert quickest(router.push, text) < 4 * little
