"""What each arm's name means."""

from __future__ import annotations

import pytest

from flarechat.bench.arms import NAMES, parse_arms
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
    [("fixed", False, True), ("adaptive", True, False), ("adaptive+history", True, True)],
)
def test_every_drafting_arm_keeps_the_width_and_the_rule(
    name: str, adaptive: bool, history: bool
) -> None:
    (arm,) = parse_arms(name, BASE)

    assert Speculation(
        draft_tokens=5, adaptive=adaptive, history_drafts=history, acceptance="match"
    ) == (arm.speculation)


def test_only_an_arm_without_copies_depends_on_a_learned_drafter() -> None:
    arms = parse_arms(",".join(NAMES), BASE)

    assert ["adaptive"] == [arm.name for arm in arms if arm.learned_only]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adaptiv", "--arms adaptiv is unknown."),
        ("", "--arms '' is unknown."),
        ("off,off", "--arms names off twice."),
    ],
)
def test_a_wrong_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_arms(text, BASE)

    assert message == caught.value.message


def test_a_drafting_arm_without_drafts_is_refused() -> None:
    with pytest.raises(SettingsError, match="--mtp-draft-tokens is 0"):
        parse_arms("off,fixed", Speculation(draft_tokens=0))
