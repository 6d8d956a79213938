"""`flarechat run` under a constraint: how it is given, what is refused, and exit code 5."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flarechat.cli.printer import constraint_line
from flarechat.constraining import ANY_JSON
from flarechat.protocol import Constraint, ConstraintResult
from tests.cli.conftest import Cli, Outcome
from tests.fakes import ScriptedEngine, words

SCHEMA = '{"type": "object", "properties": {"é": {"type": "integer"}}}'
WHOLE = ConstraintResult(kind="regex", satisfied=True, forced=3, removed=2, redrawn=1)
CUT = ConstraintResult(kind="regex", satisfied=False, error="The answer ended too early.")


def asked(got: Outcome) -> Constraint | None:
    [engine] = got.engines
    return engine.requests[0].constraint


def answering(result: ConstraintResult, **ending: str) -> Callable[[], ScriptedEngine]:
    return lambda: ScriptedEngine([words('{"a": 1')], constraint=result, **ending)  # type: ignore[arg-type]


def test_a_schema_comes_from_a_file_from_stdin_or_as_itself(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text("\ufeff" + SCHEMA, "utf-8")

    by_file = cli("run", "--json-schema", str(file), "Hi")
    inline = cli("run", "--json-schema", f" {SCHEMA}", "Hi")
    piped = cli("run", "--json-schema", "-", "Hi", stdin=SCHEMA.encode())

    assert 3 * [0] == [by_file.code, inline.code, piped.code]
    assert 3 * [SCHEMA] == [asked(got).text.strip() for got in (by_file, inline, piped)]  # type: ignore[union-attr]
    assert "Hi" == piped.engines[0].requests[0].messages[-1].content


def test_an_expression_a_grammar_and_any_json(cli: Cli, tmp_path: Path) -> None:
    lark, gbnf = tmp_path / "a.lark", tmp_path / "a.gbnf"
    lark.write_text('start: "yes" | "no"')
    gbnf.write_text('root ::= "yes" | "no"')

    assert Constraint(kind="regex", text="[0-9]+") == asked(cli("run", "--regex", "[0-9]+", "Hi"))
    assert ANY_JSON == asked(cli("run", "--json-answer", "Hi"))
    for file in (lark, gbnf):
        got = asked(cli("run", "--grammar", str(file), "Hi"))
        assert Constraint(kind="grammar", text=file.read_text()) == got
    assert asked(cli("run", "Hi")) is None


def test_a_nearer_place_puts_its_own_in_place_of_a_farther_ones(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("flarechat.toml").write_text('tools = ["calculator"]\ntool_choice = "required"\n')
    flag = cli("run", "--regex", "a+", "Hi")
    monkeypatch.setenv("FLARECHAT_JSON_ANSWER", "yes")
    variable, off = cli("run", "Hi"), cli("run", "--no-json-answer", "Hi")

    assert ("regex", ()) == (asked(flag).kind, flag.engines[0].requests[0].tools)  # type: ignore[union-attr]
    assert (ANY_JSON, None) == (asked(variable), asked(off))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--json-schema", "none.json"), "The JSON schema none.json cannot be read: No such file"),
        (("--grammar", "none.lark"), "The grammar none.lark cannot be read: No such file"),
        (("--json-schema", '{"type": "strin"}'), "cannot be enforced at its root: type is 'strin'"),
        (("--json-schema", '{"properties": {"a": {"not": {}}}}'), "at /properties/a: not is not"),
        (("--json-schema", '{"type": '), "JSON"),
        (("--json-schema", ""), "--json-schema is empty or no path."),
        (("--regex", ""), "--regex is empty."),
        (("--regex", r"(a)\1"), "The regular expression '(a)\\\\1' cannot be enforced"),
        (("--regex", "a", "--json-answer"), "--regex and --json-answer exclude each other."),
        (("--regex", "a", "--tools", "clock"), "--regex and --tools exclude each other."),
        (("--json-schema", "-"), "The JSON schema is not JSON: "),
    ],
)
def test_what_cannot_be_a_constraint_is_a_sentence_and_starts_no_engine(
    cli: Cli, arguments: tuple[str, ...], sentence: str
) -> None:
    got = cli("run", *arguments, "Hi")

    assert (2, "") == (got.code, got.out)
    assert sentence in got.err
    assert "Traceback" not in got.err
    assert not [engine for engine in got.engines if engine.requests]


def test_tools_that_may_not_be_called_stand_beside_a_constraint(cli: Cli) -> None:
    got = cli("run", "--regex", "a", "--tools", "clock", "--tool-choice", "none", "Hi")

    assert (0, "regex") == (got.code, asked(got).kind)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("reason", "remedy"), [("length", "--max-tokens"), ("context", "--ctx"), ("stop", "")]
)
def test_an_answer_that_is_not_whole_is_printed_and_ends_with_5(
    cli: Cli, reason: str, remedy: str
) -> None:
    got = cli("run", "--regex", "a", "Hi", engine=answering(CUT, reason=reason))

    assert (5, '{"a": 1\n') == (got.code, got.out)
    assert f"flarechat: {CUT.error}" == got.err.splitlines()[0]
    assert remedy in got.err


def test_a_whole_answer_ends_with_0_and_its_figures_are_told(cli: Cli) -> None:
    got = cli("run", "--stats", "--regex", "a", "Hi", engine=answering(WHOLE))

    assert 0 == got.code
    assert constraint_line(WHOLE) in got.err
    assert "3 tokens forced, 2 drafts removed, 1 tokens redrawn" in constraint_line(WHOLE)


def test_json_events_have_what_became_of_it(cli: Cli) -> None:
    got = cli("run", "--json", "--regex", "a", "Hi", engine=answering(CUT, reason="length"))

    [finished] = [e for e in map(json.loads, got.out.splitlines()) if e["event"] == "finished"]
    assert 5 == got.code
    assert {"kind": "regex", "satisfied": False, "forced": 0, "removed": 0, "redrawn": 0,
            "error": CUT.error} == finished["constraint"]  # fmt: skip


def test_of_several_answers_one_that_is_not_whole_is_enough(cli: Cli) -> None:
    got = cli("run", "--fan", "2", "--temperature", "1", "--regex", "a", "Hi",
              engine=lambda: ScriptedEngine([words("a")], constraint=CUT, lanes=2))  # fmt: skip

    assert 5 == got.code


def test_the_bench_holds_no_answers_to_anything(cli: Cli) -> None:
    got = cli("bench", "--json-answer")

    assert 2 == got.code
    assert "The bench holds no answer to --json-answer." in got.err
