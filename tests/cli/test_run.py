"""`flarechat run`: streams, events, sessions and exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flarechat import paths
from flarechat.chat import Conversation
from flarechat.config import Settings
from flarechat.errors import FlarechatError, ModelError, print_error
from flarechat.sessions import store
from flarechat.sessions.session import Session
from tests.cli.conftest import Cli
from tests.cli.scripted import refuse
from tests.fakes import ScriptedEngine, words

TEXT = "Hello there, you.\n"


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_answer_goes_to_stdout_and_nothing_else(cli: Cli) -> None:
    got = cli("run", "Hi")

    assert (0, TEXT) == (got.code, got.out)
    assert got.engines[0].closed


def test_an_answer_that_ends_with_a_line_break_gets_no_second(cli: Cli) -> None:
    got = cli("run", "Hi", engine=lambda: ScriptedEngine([words("done\n")]))

    assert "done\n" == got.out


@pytest.mark.parametrize(
    ("stdin", "arguments", "prompt"),
    [
        (b"", ("Hi",), "Hi"),
        (b"some text\n", (), "some text"),
        (b"some text\n", ("Sum it up",), "some text\n\nSum it up"),
        ("naïve \U0001f98a".encode(), (), "naïve \U0001f98a"),
        (b"bad \xff byte", (), "bad � byte"),
        (b"  \n", ("Hi",), "Hi"),
    ],
)
def test_piped_input_comes_before_the_argument(
    cli: Cli, stdin: bytes, arguments: tuple[str, ...], prompt: str
) -> None:
    got = cli("run", *arguments, stdin=stdin)

    [request] = got.engines[0].requests
    assert [prompt] == [message.content for message in request.messages]


@pytest.mark.parametrize("arguments", [(), ("",), ("  ",)])
def test_without_a_prompt_it_says_so(cli: Cli, arguments: tuple[str, ...]) -> None:
    got = cli("run", *arguments)

    assert (2, "") == (got.code, got.out)
    assert got.err.startswith("flarechat: There is no prompt.\n")
    assert [] == got.engines


def test_flags_reach_the_request_and_only_that_one(cli: Cli) -> None:
    got = cli(
        *("run", "--temperature", "0", "--top-k", "5", "--max-tokens", "9", "--stop", "a"),
        *("--stop", "b", "--system", "Be brief.", "--no-mtp", "--no-history-drafts", "Hi"),
    )

    [request] = got.engines[0].requests
    assert (0.0, 5, 0.9) == (
        request.sampling.temperature,
        request.sampling.top_k,
        request.sampling.top_p,
    )
    assert (9, ("a", "b")) == (request.max_tokens, request.stop)
    assert "system" == request.messages[0].role
    assert (False, False, True) == (
        request.speculation.mtp,
        request.speculation.history_drafts,
        request.speculation.adaptive,
    )


def test_flags_before_the_command_hold_for_it_unless_given_again(cli: Cli) -> None:
    got = cli("--top-k", "5", "--seed", "3", "run", "--top-k", "6", "Hi")

    [request] = got.engines[0].requests
    assert (6, 3) == (request.sampling.top_k, request.sampling.seed)


def test_the_folders_settings_hold(cli: Cli) -> None:
    Path("flarechat.toml").write_text("max-tokens = 7\n")

    [request] = cli("run", "Hi").engines[0].requests

    assert 7 == request.max_tokens


def test_json_prints_the_events_and_only_them(cli: Cli) -> None:
    got = cli("run", "--json", "Hi")

    printed = events(got.out)
    finished = printed[-1]

    assert 0 == got.code
    assert ["started", "progress", "round", "delta"] == [e["event"] for e in printed[:4]]
    assert {"started", "progress", "round", "delta", "finished"} == {e["event"] for e in printed}
    assert 1 == len({e["request"] for e in printed})
    assert "controller" not in finished
    assert got.out.isascii()
    rounds = [e for e in printed if e["event"] == "round"]
    totals = finished["speculation"]
    for name in ("offered", "accepted", "emitted", "clipped"):
        assert totals[name] == sum(e[name] for e in rounds)
    assert len(rounds) == totals["rounds"]
    assert totals["emitted"] == totals["accepted"] + totals["rounds"] - totals["clipped"]
    assert finished["usage"]["completion_tokens"] == totals["emitted"]
    assert finished["text"] == "".join(e["text"] for e in printed if e["event"] == "delta")


def test_json_events_have_the_published_fields(cli: Cli) -> None:
    printed = {e["event"]: e for e in events(cli("run", "--json", "Hi").out)}

    assert {
        "event", "request", "index", "width", "source", "offered", "accepted", "emitted",
        "clipped", "draft_sources", "sources", "ms", "context", "reason", "tokens", "lanes",
        "match_length", "origin", "logprobs", "repair_ms", "redrawn", "forced", "removed",
    } == set(printed["round"])  # fmt: skip
    assert {"event", "request", "text", "channel"} == set(printed["delta"])
    assert {"event", "request", "done", "total"} == set(printed["progress"])
    assert {
        "event", "request", "reason", "text", "usage", "timings", "speculation", "stop", "error",
        "thinking", "snapshot", "constraint", "notices",
    } == set(printed["finished"])  # fmt: skip
    assert {
        "rounds", "offered", "accepted", "emitted", "clipped", "mean_acceptance_length",
        "draft_acceptance_rate", "acceptance_histogram", "by_depth", "by_source",
        "cost_ms_by_width", "history", "context", "repair_ms",
    } == set(printed["finished"]["speculation"])  # fmt: skip


NOTICE = "The MTP file a\x1b.safetensors is not used: its header is not JSON."


def noticing() -> ScriptedEngine:
    return ScriptedEngine([words("done")], notices=(NOTICE,))


def test_a_notice_of_the_engine_goes_to_stderr_once(cli: Cli) -> None:
    got = cli("run", "Hi", engine=noticing)

    assert (0, "done\n") == (got.code, got.out)
    shown = NOTICE.replace("\x1b", "")
    assert f"flarechat: {shown}\n" == got.err


def test_json_begins_with_what_the_engine_had_to_say_and_only_then_with_ready(cli: Cli) -> None:
    ready, started, *_ = events(cli("run", "--json", "Hi", engine=noticing).out)

    assert ("ready", [NOTICE], "scripted-1m") == (
        ready["event"],
        ready["notices"],
        ready["model"]["name"],
    )
    assert {"file", "draft_vocabulary", "layers", "parameters"} == set(ready["model"]["mtp"])
    assert "started" == started["event"]


def test_stats_are_lines_of_the_turn_and_of_memory_on_stderr(cli: Cli) -> None:
    got = cli("run", "--stats", "Hi", engine=lambda: ScriptedEngine([words("a b")]))

    assert "a b\n" == got.out
    assert (
        "12 prompt tokens (0 restored), 2 answer tokens, first after 30 ms, 100.0 tok/s, "
        "1.00 tok/round, 0 of 0 drafts accepted, stop\n"
        "executor: eager\n"
        "memory: priced 4,000,500 B (weights 4,000,000, caches 500); allocated 4,000,500 B\n"
    ) == got.err


def test_escape_sequences_never_reach_the_output_raw(cli: Cli) -> None:
    text = cli("run", "Hi", engine="controls")
    as_json = cli("run", "--json", "Hi", engine="controls")

    assert "[31mred1m bell\ttabback\n" == text.out
    assert not set("\x1b\x9b\x07\r") & set(as_json.out)
    assert "\x1b[31mred" in events(as_json.out)[-1]["text"]


def test_escape_sequences_of_an_error_never_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_error(FlarechatError("The template said \x1b[31mno\x07.", "Look at \x1b]0;x\x9c it."))

    assert "flarechat: The template said [31mno.\n           Look at ]0;x it.\n" == (
        capsys.readouterr().err
    )


def test_without_a_session_nothing_is_saved(cli: Cli) -> None:
    cli("run", "Hi")

    assert [] == os.listdir(paths.sessions_dir())


def test_a_session_is_begun_and_continued(cli: Cli) -> None:
    first = cli("run", "--session", "trip", "Hi")
    second = cli("run", "--session", "trip", "Again")

    [request] = second.engines[0].requests
    assert (0, 0) == (first.code, second.code)
    assert ["Hi", TEXT.strip(), "Again"] == [m.content for m in request.messages]
    assert {"scripted": True} == request.controller
    assert 4 == len(Session(store.find("trip")).tree.path())
    assert ["trip.jsonl"] == os.listdir(paths.sessions_dir())


def cut_off() -> ScriptedEngine:
    return ScriptedEngine([words("one two")], reason="length")


def test_the_last_message_is_said_otherwise_and_the_first_stays_as_a_branch(cli: Cli) -> None:
    cli("run", "--session", "trip", "Hi")
    got = cli("run", "--session", "trip", "--edit", "Hello")
    tree = Session(store.find("trip")).tree

    [request] = got.engines[0].requests
    assert (0, ["Hello"]) == (got.code, [m.content for m in request.messages])
    assert ["Hello", TEXT.strip()] == [turn.text for turn in tree.path()]
    assert ["Hi", "Hello"] == [turn.text for turn in tree.siblings(tree.path()[0])]


def test_the_last_message_is_answered_again_by_the_next_seed(cli: Cli) -> None:
    cli("run", "--session", "trip", "--seed", "5", "Hi")
    got = cli("run", "--session", "trip", "--seed", "5", "--regenerate")
    tree = Session(store.find("trip")).tree

    [request] = got.engines[0].requests
    assert (0, TEXT, 6) == (got.code, got.out, request.sampling.seed)
    assert ["Hi"] == [m.content for m in request.messages]
    assert 2 == len(tree.siblings(tree.path()[-1]))


def test_an_answer_that_was_cut_off_goes_on_and_only_what_is_new_is_printed(cli: Cli) -> None:
    cli("run", "--session", "trip", "Hi", engine=cut_off)
    got = cli(
        "run",
        "--session",
        "trip",
        "--continue-answer",
        engine=lambda: ScriptedEngine([words(" three")]),
    )
    tree = Session(store.find("trip")).tree

    assert (0, " three\n") == (got.code, got.out)
    assert ["Hi", "one two three"] == [turn.text for turn in tree.path()]


def test_an_answer_that_cannot_go_on_is_told_and_kept(cli: Cli) -> None:
    cli("run", "--session", "trip", "Hi", engine=cut_off)
    got = cli("run", "--session", "trip", "--continue-answer", engine="too-long")
    [_, answer] = Session(store.find("trip")).tree.path()

    assert 2 == got.code
    assert "flarechat: The prompt has 9 tokens too many.\n" in got.err
    assert ("one two", "length", "complete") == (answer.text, answer.reason, answer.status)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--regenerate",), "--regenerate is about a session's last exchange. Give --session"),
        (("--session", "x", "--edit", "--regenerate"), "--edit and --regenerate exclude each"),
        (("--session", "x", "--regenerate", "--fan", "2"), "--regenerate and --fan exclude each"),
        (("--session", "x", "--regenerate", "Hi"), "There is no place for the prompt 'Hi' here."),
        (("--session", "x", "--edit"), "There is no prompt."),
        (("--session", "x", "--edit", "Hi"), "There is no message to edit."),
        (("--session", "x", "--regenerate"), "There is no message to answer again."),
        (("--session", "x", "--continue-answer"), "There is no answer to continue."),
    ],
)
def test_a_verb_that_cannot_be_is_one_sentence(
    cli: Cli, arguments: tuple[str, ...], said: str
) -> None:
    got = cli("run", *arguments)

    assert (2, "") == (got.code, got.out)
    assert said in " ".join(got.err.split())
    assert "Traceback" not in got.err
    assert [] == got.engines


def test_what_a_session_has_no_place_for_is_refused_before_anything_is_loaded(cli: Cli) -> None:
    cli("run", "--session", "trip", "Hi")
    before = store.find("trip").read_bytes()

    got = cli("run", "--session", "trip", "--continue-answer")

    assert (2, "", []) == (got.code, got.out, got.engines)
    assert "The last answer ended by itself; there is nothing to continue." in got.err
    assert before == store.find("trip").read_bytes()


def test_of_a_fan_left_open_the_first_answer_goes_on(cli: Cli) -> None:
    engine = ScriptedEngine([words("one two")], reason="length", lanes=2)
    chat = Conversation.new(engine, Settings(), name="trip")
    engine.start()
    while not chat.fan or chat.live:
        for event in engine.wait(0):
            chat.apply(event)
        if chat.bound and not chat.fan:
            chat.fan_out("Hi", 2)
    chat.close()

    got = cli("run", "--session", "trip", "--continue-answer")

    assert (0, TEXT) == (got.code, got.out)
    assert "None of 2 answers was picked" in got.err
    assert ["Hi", "one two" + TEXT.strip()] == [
        t.text for t in Session(store.find("trip")).tree.path()
    ]


def test_a_session_open_elsewhere_is_refused_before_anything_is_loaded(cli: Cli) -> None:
    cli("run", "--session", "trip", "Hi")
    path = store.find("trip")
    from flarechat.sessions.session import SessionWriter

    writer, _ = SessionWriter.open(path)
    got = cli("run", "--session", "trip", "Again")
    writer.close()

    assert (2, "") == (got.code, got.out)
    assert f"flarechat: The session trip is open in process {os.getpid()}.\n" in got.err
    assert [] == got.engines[0].drain()


def test_a_notice_of_a_damaged_session_goes_to_stderr(cli: Cli) -> None:
    cli("run", "--session", "trip", "Hi")
    with store.find("trip").open("a") as file:
        file.write('{"torn')

    got = cli("run", "--session", "trip", "Again")

    assert (0, TEXT) == (got.code, got.out)
    assert "flarechat: The last line of trip (line 4) was cut off and is left out.\n" in got.err
    assert 4 == len(Session(store.find("trip")).tree.path())


def test_an_alien_session_file_is_refused_and_left_alone(cli: Cli) -> None:
    path = paths.sessions_dir() / "trip.jsonl"
    path.write_text("my diary\n")

    got = cli("run", "--session", "trip", "Hi")

    assert 2 == got.code
    assert f"{path}, line 1, is not the start of a flarechat session." in got.err
    assert "my diary\n" == path.read_text()


def test_an_answer_that_could_not_be_saved_fails_after_it_was_printed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    def refuse_all(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", refuse_all)
    got = cli("run", "--session", "trip", "Hi")

    assert (1, TEXT) == (got.code, got.out)
    assert "There is no space left for the session file" in got.err
    assert "flarechat: The answer was not saved." in got.err


def test_an_engine_that_cannot_start_gives_its_own_exit_code(cli: Cli) -> None:
    got = cli("run", "Hi", engine=refuse(ModelError("There is no model 'x'.", "Pull it.")))

    assert (3, "") == (got.code, got.out)
    assert got.err == "flarechat: There is no model 'x'.\n           Pull it.\n"
    assert got.engines[0].closed


def test_an_answer_that_fails_keeps_its_text_and_exits_with_1(cli: Cli) -> None:
    got = cli("run", "Hi", engine="failing")

    assert (1, "Hello there.\n") == (got.code, got.out)
    assert "flarechat: The engine lost its way.\n" in got.err


def test_an_engine_that_dies_ends_the_events_with_what_was_said(cli: Cli) -> None:
    got = cli("run", "--json", "--session", "trip", "Hi", engine="dying")
    last = events(got.out)[-1]

    assert 1 == got.code
    assert got.err.endswith("flarechat: It died.\n")
    assert ("finished", "error", "Hello") == (last["event"], last["reason"], last["text"])
    assert 1 == last["usage"]["completion_tokens"] == last["speculation"]["emitted"]


def test_a_prompt_that_is_too_long_exits_with_2(cli: Cli) -> None:
    text = cli("run", "Hi", engine="too-long")
    as_json = cli("run", "--json", "Hi", engine="too-long")

    assert (2, "") == (text.code, text.out)
    assert "flarechat: The prompt has 9 tokens too many.\n" in text.err
    assert 2 == as_json.code
    assert "PromptTooLongError" == events(as_json.out)[-1]["error"]["kind"]
