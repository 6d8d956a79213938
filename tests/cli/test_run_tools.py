"""`flarechat run` with tools: what is printed where, whose leave is needed, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flarechat.sessions import store
from flarechat.sessions.session import Session
from tests.cli.conftest import Cli, Outcome
from tests.fakes import ScriptedEngine, calls, words

SUM = ("c1", "calculator", {"expression": "17*23"})


def counting() -> ScriptedEngine:
    return ScriptedEngine([(*words("Let me see."), *calls(SUM)), words("It is 391.")])


def events(got: Outcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in got.out.splitlines()]


def test_a_call_runs_by_leave_and_only_answers_go_to_stdout(cli: Cli) -> None:
    got = cli("run", "--tools", "calculator", "--yes", "calculator", "Hi", engine=counting)

    assert (0, "Let me see.\nIt is 391.\n") == (got.code, got.out)
    assert 'flarechat: calculator {"expression": "17*23"} → 391\n' == got.err
    assert ["tool"] == [m.role for m in got.engines[0].requests[1].messages[2:]]


@pytest.mark.parametrize("yes", [("--yes", "clock"), ()])
def test_without_leave_nothing_runs_and_the_model_and_the_user_are_told(
    cli: Cli, yes: tuple[str, ...]
) -> None:
    got = cli("run", "--tools", "calculator,clock", *yes, "Hi", engine=counting)

    assert (0, "Let me see.\nIt is 391.\n") == (got.code, got.out)
    assert "calculator was not run; --yes calculator allows it." in got.err
    last = got.engines[0].requests[1].messages[-1]
    assert ("tool", "c1", "Error: the user did not allow this call.") == (
        last.role, last.call, last.content,
    )  # fmt: skip


def test_json_tells_the_call_its_result_and_both_answers(cli: Cli) -> None:
    got = cli("run", "--json", "--tools", "calculator", "--yes", "all", "Hi", engine=counting)

    told = [e for e in events(got) if e["event"] in ("tool_call", "tool_result", "finished")]
    first, second = got.engines[0].requests
    assert ["tool_call", "finished", "tool_result", "finished"] == [e["event"] for e in told]
    called, asked, result, answered = told
    assert (first.id, "", "<calculator>", "c1", "calculator", {"expression": "17*23"}) == (
        called["request"], called["error"], called["text"], *list(called["call"].values())[:3],
    )  # fmt: skip
    assert (first.id, "tool_calls") == (asked["request"], asked["reason"])
    assert {"event": "tool_result", "request": first.id, "call": "c1", "name": "calculator",
            "outcome": "done", "text": "391"} == result  # fmt: skip
    assert (second.id, "stop", "It is 391.") == (
        answered["request"], answered["reason"], answered["text"],
    )  # fmt: skip


def by_hand(folder: Path) -> str:
    file = folder / "tools.json"
    weather = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}
    file.write_text(json.dumps([weather, {"name": "echo", "command": ["cat"]}]))
    return str(file)


def test_a_tool_that_is_answered_by_hand_ends_the_turn_with_its_call(
    cli: Cli, tmp_path: Path
) -> None:
    made = calls(("a", "echo", {"x": 1}), ("b", "weather", {"city": "Röm"}), ("c", "echo", {}))
    arguments = ("run", "--tools", by_hand(tmp_path), "--yes", "all", "--session", "s", "Hi")

    def engine() -> ScriptedEngine:
        return ScriptedEngine([(*words("Hm"), *made), words("never")])

    text = cli(*arguments, engine=engine)
    as_json = cli(*arguments, "--json", engine=engine)

    left = [
        '{"name": "weather", "arguments": {"city": "R\\u00f6m"}}',
        '{"name": "echo", "arguments": {}}',
    ]
    assert (0, ["Hm", *left]) == (text.code, text.out.splitlines())
    assert 'echo {"x": 1} → {"x": 1}' in text.err
    assert ["tool_calls"] == [e["reason"] for e in events(as_json) if e["event"] == "finished"]
    assert (0, 3) == (as_json.code, sum(e["event"] == "tool_call" for e in events(as_json)))
    assert "tool" == Session(store.find("s")).tree.path()[-1].role


def test_the_next_run_of_a_session_tells_what_was_not_run(cli: Cli, tmp_path: Path) -> None:
    made = calls(("b", "weather", {"city": "Rome"}))
    arguments = ("run", "--tools", by_hand(tmp_path), "--session", "s")
    cli(*arguments, "Hi", engine=lambda: ScriptedEngine([made]))

    got = cli(*arguments, "And?")

    assert ["user", "assistant", "tool", "user"] == [
        m.role for m in got.engines[0].requests[0].messages
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--tools", "none.json"), "The tools none.json cannot be read: No such file"),
        (("--tools", ""), "--tools is empty or no path."),
        (("--tools", "clock", "--yes", "cloc"), "--yes cloc names no tool."),
        (("--yes", "clock"), "--yes clock names no tool."),
        (("--tools", "clock", "--tool-choice", "cloc"), "--tool-choice cloc is unknown."),
        (("--tool-choice", "required"), "--tool-choice required needs tools to choose from."),
        (("--tools", "clock", "--tool-rounds", "0"), "--tool-rounds 0 is out of range."),
        (("--tools", "clock", "--fan", "2"), "--fan and --tools exclude each other."),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_model_is_loaded(
    cli: Cli, arguments: tuple[str, ...], sentence: str
) -> None:
    got = cli("run", *arguments, "Hi")

    assert (2, "", []) == (got.code, got.out, got.engines)
    assert sentence in got.err


def test_tools_are_set_in_a_file_and_choice_and_tools_reach_the_request(cli: Cli) -> None:
    Path("flarechat.toml").write_text('tools = ["calculator", "clock"]\ntool-choice = "clock"\n')

    [request] = cli("run", "Hi").engines[0].requests

    assert (["calculator", "clock"], "clock") == (
        [tool.name for tool in request.tools], request.tool_choice,
    )  # fmt: skip


def test_a_session_with_tools_is_shown_found_and_sound(cli: Cli) -> None:
    cli("run", "--tools", "calculator", "--yes", "all", "--session", "s", "Hi", engine=counting)

    got = cli("sessions", "show", "s")
    as_json = cli("sessions", "show", "s", "--json")

    assert 'Model:\nLet me see.\n→ calculator {"expression": "17*23"}' in got.out
    assert "Tool calculator:\n391" in got.out
    assert 0 == as_json.code
    assert '"c1"' in as_json.out
    assert 0 == cli("sessions", "verify").code
    assert "tool" in cli("sessions", "search", "391", "--json").out


PROGRAM = """
import sys
from flarechat.__main__ import main
from tests.cli import scripted
from tests.fakes import calls
scripted.install(lambda: scripted.Paced([calls(("c", "slow", {}))]))
sys.exit(main(sys.argv[1:]))
"""


def test_an_interrupt_stops_the_tool_and_the_turn(tmp_path: Path) -> None:
    file, mark = tmp_path / "tools.json", tmp_path / "begun"
    script = f"echo $$ > {mark}.part; mv {mark}.part {mark}; exec sleep 60"
    file.write_text(json.dumps([{"name": "slow", "command": ["sh", "-c", script]}]))
    arguments = ("run", "--tools", str(file), "--yes", "slow", "--session", "s", "Hi")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < until, "the tool does not begin"
        time.sleep(0.02)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert (130, "") == (process.returncode, out)
    assert time.monotonic() - began < 10
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.killpg(int(mark.read_text()), 0)
    assert "stopped" == Session(store.find("s")).tree.path()[-1].reason
