"""`flarechat run --fan N`: several answers to one prompt, as text, as events and in a session."""

from __future__ import annotations

import json

import pytest

from flarechat.cli.printer import FanPrinter
from flarechat.cli.progress import Bar
from flarechat.protocol import Delta, ErrorInfo, Event, Failed, Finished
from flarechat.sessions import store
from flarechat.sessions.session import Session
from tests.cli.conftest import Cli
from tests.fakes import ScriptedEngine, words

ANSWERS = [words("one red apple"), words("two\n"), words("three blue")]
TEXT = """--- answer 1 of 3 ---
one red apple

--- answer 2 of 3 ---
two

--- answer 3 of 3 ---
three blue
"""


def three(lanes: int = 4) -> ScriptedEngine:
    return ScriptedEngine(ANSWERS, lanes=lanes)


def test_answers_are_printed_one_behind_the_other_each_below_its_number(cli: Cli) -> None:
    got = cli("run", "--fan", "3", "Go", engine=three)

    assert (0, TEXT) == (got.code, got.out)
    assert ["Go"] * 3 == [r.messages[-1].content for r in got.engines[0].requests]


def test_a_seed_counts_up(cli: Cli) -> None:
    got = cli("run", "--fan", "2", "--seed", "7", "Go", engine=three)

    assert [7, 8] == [request.sampling.seed for request in got.engines[0].requests]


@pytest.mark.parametrize(
    ("flags", "lanes"), [((), 3), (("--concurrency", "4"), 4), (("--concurrency", "2"), 3)]
)
def test_the_engine_is_started_with_lanes_enough(
    cli: Cli, flags: tuple[str, ...], lanes: int
) -> None:
    got = cli("run", "--fan", "3", *flags, "Go", engine=three)

    settings = got.engines[0].settings
    assert settings is not None
    assert lanes == settings.concurrency


def test_events_say_which_answer_they_belong_to(cli: Cli) -> None:
    got = cli("run", "--fan", "2", "--json", "Go", engine=three)
    events = [json.loads(line) for line in got.out.splitlines()]
    ids = [request.id for request in got.engines[0].requests]

    assert {(ids[0], 1), (ids[1], 2)} == {(e["request"], e["answer"]) for e in events}
    ended = {e["answer"]: e["text"] for e in events if e["event"] == "finished"}
    assert {1: "one red apple", 2: "two\n"} == ended
    first_text = [e["answer"] for e in events if e["event"] == "delta"][:2]
    assert [1, 2] == first_text


def test_the_next_answer_streams_as_soon_as_the_one_before_has_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = FanPrinter(Bar())
    printer.asked(["a", "b"])
    seen = []
    for event in (
        Delta(request="a", text="one"),
        Delta(request="b", text="held "),
        Finished.unplayed("a", "stop"),
        Delta(request="b", text="live"),
    ):
        printer.show(event)
        seen.append(capsys.readouterr().out)

    assert ["--- answer 1 of 2 ---\none", "", "\n\n--- answer 2 of 2 ---\nheld ", "live"] == seen


def test_one_answers_events_have_no_number(cli: Cli) -> None:
    got = cli("run", "--json", "Go")

    assert all("answer" not in json.loads(line) for line in got.out.splitlines())


def test_a_session_goes_on_with_the_first_and_keeps_the_others(cli: Cli) -> None:
    cli("run", "--fan", "3", "--session", "kept", "Go", engine=three)
    again = cli("run", "--session", "kept", "More", engine=three)
    session = Session(store.find("kept"))

    assert ["Go", "one red apple", "More"] == [
        message.content for message in again.engines[0].requests[0].messages
    ]
    assert "picked" not in again.err
    siblings = session.tree.siblings(session.tree.path()[1])
    assert ["one red apple", "two\n", "three blue"] == [turn.text for turn in siblings]
    assert "Model (one of 3 answers):\none red apple\n" in cli("sessions", "show", "kept").out


def test_statistics_are_told_for_every_answer(cli: Cli) -> None:
    got = cli("run", "--fan", "2", "--stats", "Go", engine=three)

    assert "answer 1: 12 prompt tokens" in got.err and "answer 2: 12 prompt tokens" in got.err


@pytest.mark.parametrize(
    ("flags", "lanes", "said"),
    [
        (("--fan", "1"), 4, "A fan has 2 to 4 answers, not 1."),
        (("--fan", "5"), 4, "A fan has 2 to 4 answers, not 5."),
        (("--fan", "2", "--temperature", "0"), 4, "At temperature 0 all 2 answers would be the"),
        (("--fan", "3"), 2, "The engine gives 2 answers at a time; a fan of 3 needs 3."),
    ],
)
def test_a_fan_that_cannot_be_is_a_usage_error(
    cli: Cli, flags: tuple[str, ...], lanes: int, said: str
) -> None:
    got = cli("run", *flags, "Go", engine=lambda: three(lanes))

    assert (2, "") == (got.code, got.out)
    assert said in got.err


class Dying(ScriptedEngine):
    """Dies after some rounds."""

    def drain(self) -> list[Event]:
        events = super().drain()
        if any(turn.totals.rounds == 2 for turn in self._live):
            self._live.clear()
            events.append(Failed(error=ErrorInfo(kind="EngineError", message="It died.")))
        return events


def test_an_engine_that_dies_leaves_what_every_answer_had(cli: Cli) -> None:
    got = cli(
        "run", "--fan", "2", "--session", "dead", "Go", engine=lambda: Dying(ANSWERS, lanes=4)
    )
    turns = Session(store.find("dead")).tree.turns.values()

    assert 1 == got.code and "It died." in got.err
    assert "--- answer 1 of 2 ---\none red\n" in got.out and "--- answer 2 of 2 ---\ntwo" in got.out
    statuses = {turn.answer: turn.status for turn in turns if turn.role == "assistant"}
    assert {1: "error", 2: "complete"} == statuses


def test_a_chat_left_with_a_choice_goes_on_with_the_first_and_says_so(cli: Cli) -> None:
    test_an_engine_that_dies_leaves_what_every_answer_had(cli)
    got = cli("run", "--session", "dead", "More", engine=three)

    assert (0, "one red apple\n") == (got.code, got.out)
    assert "None of 2 answers was picked; it went on with the 1st." in got.err
