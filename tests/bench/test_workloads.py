"""Which prompts a bench puts, and what it says about those it cannot read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flarechat.bench.workloads import load_workloads
from flarechat.errors import SettingsError


def test_the_built_in_set_covers_every_kind_of_text() -> None:
    categories = {w.category for w in load_workloads("all")}

    assert {"chat", "prose", "code", "edit", "repeat", "summary"} == categories


def test_names_and_categories_are_chosen_in_the_order_of_the_set() -> None:
    assert ["prose", "letter", "program"] == [w.name for w in load_workloads("edit, prose")]


def test_only_the_repeat_prompt_asks_for_repetition() -> None:
    assert ["repeat"] == [w.name for w in load_workloads("all") if w.repetition_asked]


@pytest.mark.parametrize(("word", "hint"), [("proze", "Did you mean prose?"), ("zzz", "Use all")])
def test_an_unknown_name_is_refused_with_what_is_near(word: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_workloads(word)

    assert f"--workload {word} is unknown." == caught.value.message
    assert hint in caught.value.hint


def test_an_empty_choice_is_refused() -> None:
    with pytest.raises(SettingsError, match="--workload '' is unknown"):
        load_workloads(",")


def test_a_file_of_prompts_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    entry = {"name": "mine", "category": "own", "prompt": "Say hello.", "max_tokens": 8}
    file.write_text(json.dumps([entry]))

    (workload,) = load_workloads(str(file))

    assert ("mine", 8, False) == (workload.name, workload.max_tokens, workload.repetition_asked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not JSON"),
        ("{}", "holds no list of prompts"),
        ("[]", "holds no list of prompts"),
        ("[1]", "Entry 1 of"),
        ('[{"name": "a", "category": "b", "prompt": "c", "max_tokens": "8"}]', "max_tokens = '8'"),
        ('[{"name": "a", "category": "b", "prompt": "", "max_tokens": 8}]', "prompt = ''"),
        (
            json.dumps([{"name": "a", "category": "b", "prompt": "c", "max_tokens": 8}] * 2),
            "names 'a' twice",
        ),
    ],
)
def test_a_broken_file_is_refused_by_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "broken.json"
    file.write_text(text)

    with pytest.raises(SettingsError) as caught:
        load_workloads(str(file))

    assert message in caught.value.message


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.json cannot be read"):
        load_workloads("nowhere.json")
