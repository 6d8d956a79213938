"""What each arm's name means."""

from __future__ import annotations

import inspect

import pytest

from flarechat.bench.arms import DEFAULT, NAMES, parse_arms
from flarechat.cli.bench import bench
from flarechat.errors import SettingsError
from flarechat.protocol import Speculation

BASE = Speculation(draft_tokens=5, acceptance="match")


def test_off_can_draft_nothing() -> None:
    (off,) = parse_arms("off", BASE)

    assert (0, False, False, False) == (
        off.speculation.draft_tokens,
        off.speculation.adaptive,
        off.speculation.history_drafts,
        off.speculation.mtp,
    )


@pytest.mark.parametrize(
    ("name", "adaptive", "history"),
    [("adaptive", True, False), ("adaptive+history", True, True)],
)
def test_every_drafting_arm_keeps_the_width_and_the_rule(
    name: str, adaptive: bool, history: bool
) -> None:
    (arm,) = parse_arms(name, BASE)

    assert Speculation(
        draft_tokens=5, adaptive=adaptive, history_drafts=history, acceptance="match"
    ) == (arm.speculation)


def test_a_fixed_arm_drafts_its_number_with_the_head_alone() -> None:
    arms = parse_arms("fixed", BASE)

    assert [f"fixed-{count}" for count in range(1, 8)] == [arm.name for arm in arms]
    for count, arm in enumerate(arms, start=1):
        assert (
            Speculation(
                draft_tokens=count, adaptive=False, history_drafts=False, acceptance="match"
            )
            == arm.speculation
        )


def test_all_names_every_arm_and_so_does_the_default() -> None:
    assert list(NAMES) == [arm.name for arm in parse_arms("all", BASE)]
    assert 10 == len(NAMES)
    assert list(NAMES) == [arm.name for arm in parse_arms(DEFAULT, BASE)]
    assert DEFAULT == inspect.signature(bench).parameters["arms"].default


def test_only_an_arm_without_copies_depends_on_a_learned_drafter() -> None:
    arms = parse_arms("all", BASE)

    assert ["off", "adaptive+history"] == [arm.name for arm in arms if not arm.learned_only]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adaptiv", "--arms adaptiv is unknown."),
        ("", "--arms '' is unknown."),
        ("off,off", "--arms names off twice."),
        ("fixed,fixed-3", "--arms names fixed-3 twice."),
        ("fixed-8", "--arms fixed-8 is unknown."),
    ],
)
def test_a_wrong_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_arms(text, BASE)

    assert message == caught.value.message


def test_a_drafting_arm_without_drafts_is_refused() -> None:
    with pytest.raises(SettingsError, match="--mtp-draft-tokens is 0"):
        parse_arms("off,adaptive", Speculation(draft_tokens=0))
