"""The calls of one answer: leave, order, limits, and tools that misbehave."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from flarechat.protocol import Tool, ToolCall
from flarechat.tools import calling
from flarechat.tools.builtin import built_in
from flarechat.tools.calling import Calling
from flarechat.tools.definitions import Definition
from flarechat.tools.results import Result
from flarechat.tools.toolbox import Toolbox


def shell(name: str, script: str, **limits: Any) -> Definition:
    limits = {"timeout": 5.0, "output_limit": 100} | limits
    return Definition(tool=Tool(name=name), command=("sh", "-c", script), **limits)


TOOLS = [
    shell("echo", "cat"),
    shell("hang", "echo so far; sleep 60", timeout=0.2),
    shell("flood", "head -c 300000 /dev/zero | tr '\\0' x"),
    shell("fail", "echo out; echo why >&2; exit 1"),
    shell("quiet", "echo out; exit 2"),
    shell("killed", "kill -9 $$"),
    shell(
        "paint", "printf '\\033[31mred\\033[0m \\033]0;title\\007bell\\007 \\302\\2331m\\r\\n\\377'"
    ),
    shell("fork", "sleep 60 & echo gone"),
    shell("slow", "sleep 60", timeout=60.0),
    Definition(tool=Tool(name="gone"), command=("/no/such/program",)),
    Definition(tool=Tool(name="hand")),
    Definition(
        tool=built_in("calculator", None, 0)[0], function=built_in("calculator", None, 0)[1]
    ),
]
BOX = Toolbox(TOOLS)


def call(name: str, own: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(id=own or name, name=name, arguments=arguments)


def finished(made: Calling, seconds: float = 10.0) -> list[Result]:
    """All results; nothing may wait for the user."""
    results, until = made.poll(), time.monotonic() + seconds
    while not made.done:
        assert time.monotonic() < until, "a call does not end"
        assert made.waiting is None
        made.wait(0.01)
        results += made.poll()
    return results


def ran(name: str, **arguments: Any) -> tuple[str, str]:
    [result] = finished(Calling(BOX, [call(name, **arguments)], {name}))
    assert (name, name) == (result.call, result.name)
    return result.outcome, result.text


def test_the_arguments_go_in_as_json() -> None:
    outcome, text = ran("echo", a=[1, "é\ud800"])

    assert ("done", {"a": [1, "é\ud800"]}) == (outcome, json.loads(text))


@pytest.mark.parametrize(
    ("name", "outcome", "text"),
    [
        ("hang", "failed", "Error: hang was ended, as it took more than 0.2 s.\nso far"),
        ("flood", "done", "x" * 100 + "\n[cut here: 100 bytes are the most that is kept]"),
        ("fail", "failed", "Error: fail ended with status 1.\nwhy"),
        ("quiet", "failed", "Error: quiet ended with status 2.\nout"),
        ("killed", "failed", "Error: killed was ended by signal 9."),
        ("paint", "done", "red bell \n�"),
        ("fork", "done", "gone"),
        ("gone", "failed", "Error: gone could not be started: No such file or directory."),
    ],
)
def test_a_tool_that_misbehaves_has_a_bounded_result(name: str, outcome: str, text: str) -> None:
    began = time.monotonic()

    assert (outcome, text) == ran(name)
    assert time.monotonic() - began < 5


def test_a_tool_that_was_not_allowed_waits_and_is_not_run() -> None:
    made = Calling(BOX, [call("echo")], set())

    assert [] == made.poll()
    assert made.waiting == call("echo")
    refused = made.refuse()

    assert ("refused", "Error: the user did not allow this call.") == (
        refused.outcome,
        refused.text,
    )
    assert (True, []) == (made.done, made.poll())


def test_leave_is_for_one_call_or_for_all_of_a_tool() -> None:
    allowed: set[str] = set()
    made = Calling(BOX, [call("echo", str(n), n=n) for n in range(3)], allowed)
    made.poll()
    made.allow()
    results: list[Result] = []
    while not made.waiting:
        made.wait(1)
        results += made.poll()
    assert ["0"] == [result.call for result in results]
    assert made.waiting.id == "1"
    made.allow(always=True)

    assert ["1", "2"] == [result.call for result in finished(made)]
    assert {"echo"} == allowed


def test_a_tool_is_answered_by_hand_though_all_are_allowed() -> None:
    made = Calling(BOX, [call("hand"), call("echo")], {"hand", "echo"})

    assert ([], True) == (made.poll(), made.by_hand)
    answer = made.answer("4 \x1b[1mdegrees")

    assert ("done", "4 degrees") == (answer.outcome, answer.text)
    assert ["echo"] == [result.call for result in finished(made)]


def test_results_come_in_the_order_of_the_calls() -> None:
    made = Calling(
        BOX, [call("fork"), call("calculator", expression="2*3")], {"fork", "calculator"}
    )

    assert ["gone", "6"] == [result.text for result in finished(made)]


def test_an_answer_calls_eight_times_at_most() -> None:
    made = Calling(
        BOX, [call("calculator", str(n), expression=f"{n}") for n in range(10)], {"calculator"}
    )

    outcomes = [(result.outcome, result.text[:14]) for result in finished(made)]

    assert [("done", str(n)) for n in range(8)] == outcomes[:8]
    assert [("unrun", "Error: not run")] * 2 == outcomes[8:]


def test_the_very_same_call_is_run_again_only_twice() -> None:
    same = [call("calculator", str(n), expression="1") for n in range(3)]
    before = [call("calculator", "x", expression="1")]

    results = finished(
        Calling(BOX, [*same, call("calculator", "y", expression="2")], {"calculator"}, before)
    )

    assert ["done", "done", "unrun", "done"] == [result.outcome for result in results]
    assert "made 3 times already" in results[2].text


def test_a_tool_that_is_not_there_is_told() -> None:
    [result] = finished(Calling(BOX, [call("nothing")], set()))

    assert ("failed", "Error: there is no tool nothing.") == (result.outcome, result.text)


def test_a_running_tool_is_stopped_and_nothing_behind_it_is_run() -> None:
    made, began = Calling(BOX, [call("slow"), call("echo")], {"slow", "echo"}), time.monotonic()
    made.poll()
    assert made.running

    stopped = made.stop()

    assert stopped is not None
    assert ("stopped", "slow") == (stopped.outcome, stopped.call)
    assert (True, [], None) == (made.done, made.poll(), made.stop())
    assert time.monotonic() - began < 5


def test_a_tool_that_breaks_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError("all of it")

    monkeypatch.setattr(calling.Toolbox, "run", broken)

    assert ("failed", "Error: echo failed: MemoryError.") == ran("echo")


def test_a_program_of_the_users_own_reads_its_arguments() -> None:
    script = "import json, sys; print(json.load(sys.stdin)['n'] + 1)"
    definition = Definition(tool=Tool(name="next"), command=(sys.executable, "-S", "-c", script))

    [result] = finished(Calling(Toolbox([definition]), [call("next", n=41)], {"next"}), 60)

    assert ("done", "42") == (result.outcome, result.text)
