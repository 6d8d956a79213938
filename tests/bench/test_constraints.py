"""The measurement of answers under constraints, on a tiny model: all arms say the same by match,
and every answer over the constraints of the tests is valid, or told to be cut off."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import constraints
from tests.engine.grammar.schemas import CASES
from tests.models import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("roomy")
    made = tiny.write(folder / "roomy.gguf", extra={"llama.context_length": 2048})
    return str(made.path)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, model: str) -> Callable[..., int]:
    def run(*words: str) -> int:
        words = ("constraints", "--model", model, "--dtype", "float32", *words)
        monkeypatch.setattr(sys, "argv", list(words))
        return constraints.main()

    return run


def test_every_arm_is_measured_beside_width_one(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constraints, "LONGEST", 24)
    monkeypatch.setattr(constraints, "PROMPTS", dict(list(constraints.PROMPTS.items())[:2]))
    out = tmp_path / "constraints.csv"

    assert 0 == command("--repeat", "1", "--acceptance", "match", "--out", str(out))

    rows = list(csv.DictReader(out.read_text("utf-8").splitlines()))
    assert all("2" == row["answers"] for row in rows)
    assert list(constraints.ARMS) == [row["arm"] for row in rows]
    assert 1 == len({row["tokens"] for row in rows})
    one, *others = rows
    assert ("1.0", "0", one["tokens"]) == (one["tokens_per_pass"], one["accepted"], one["passes"])
    assert all(float(row["tokens_per_pass"]) > 1.3 and int(row["forced"]) for row in others)


def test_answers_over_all_constraints_are_judged_by_others(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == command("--valid", str(len(CASES)), "--longest", "60")

    told = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[:2]]
    counts = {ending: int(count) for count, ending in told}
    assert {"valid", "cut off, and told so"} == counts.keys()
    assert len(CASES) <= counts["valid"] < sum(counts.values())


def test_an_answer_that_others_do_not_take_fails_it(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(CASES[0], constraint=CASES[-1].constraint)
    monkeypatch.setattr(type(other), "holds", lambda case, answer: False)
    monkeypatch.setattr("tests.engine.grammar.schemas.CASES", (CASES[5],))

    assert 1 == command("--valid", "4", "--longest", "60")
