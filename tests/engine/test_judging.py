"""Which judge comes first, and what of a round is asked of the executor."""

from __future__ import annotations

from typing import Any

import pytest

from flarechat.engine.frame import LaneRecord
from flarechat.engine.judge import Verdict
from flarechat.engine.judging import judged
from flarechat.errors import ConstraintError

TOKENS = (5, 6, 7, 8)
RECORD = LaneRecord(3, 3, 4, 0, 24, 4, TOKENS)
MASK = b"\x06"


class Judges:
    """An answer whose grammar keeps `kept` tokens and whose stop string is whole with `stop`."""

    slot, amendable, fault = 2, True, ""

    def __init__(self, kept: int, stop: int | None = None, **verdict: Any) -> None:
        self._verdict = Verdict(kept, **verdict)
        self._stop = stop

    def verdict(self, tokens: tuple[int, ...]) -> Verdict:
        return self._verdict

    def stops_at(self, tokens: tuple[int, ...]) -> int | None:
        return self._stop if self._stop is not None and self._stop <= len(tokens) else None


class Asked:
    """An executor that keeps what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def redraw(self, *call: object) -> int:
        self.calls.append(("redraw", *call))
        return 1

    def amend(self, *call: object) -> LaneRecord:
        self.calls.append(("amend", *call))
        return RECORD


@pytest.mark.parametrize(
    ("judges", "calls"),
    [
        (Judges(4), []),
        (Judges(4, stop=4), []),
        (Judges(4, stop=2), [("amend", 2, 2)]),
        (Judges(2, legal=MASK), [("redraw", 2, 2, MASK), ("amend", 2, 3, 1)]),
        (Judges(0, legal=MASK), [("redraw", 2, 0, MASK), ("amend", 2, 1, 1)]),
        (Judges(2, stop=1, legal=MASK), [("amend", 2, 1)]),
        (Judges(2, stop=2, legal=MASK), [("amend", 2, 2)]),
        (Judges(2, stop=3, legal=MASK), [("redraw", 2, 2, MASK), ("amend", 2, 3, 1)]),
        (Judges(2, ended=True), [("amend", 2, 2)]),
        (Judges(4, ended=True), []),
    ],
)
def test_the_judge_that_is_first_in_the_text_decides(
    judges: Judges, calls: list[tuple[object, ...]]
) -> None:
    executor = Asked()
    found = judged(executor, judges, RECORD)  # type: ignore[arg-type]

    assert calls == executor.calls
    assert RECORD == found.record and found.failure is None
    assert found.redrawn == any(call[0] == "redraw" for call in calls)


def test_a_grammar_that_cannot_be_followed_fails_its_answer_alone() -> None:
    judges = Judges(0, ended=True)
    judges.fault = "It grew too large."
    found = judged(Asked(), judges, RECORD)  # type: ignore[arg-type]

    assert isinstance(found.failure, ConstraintError)


def test_answers_without_judges_are_not_asked() -> None:
    executor, judges = Asked(), Judges(1, legal=MASK)
    judges.amendable = False

    assert RECORD == judged(executor, judges, RECORD).record  # type: ignore[arg-type]
    assert not executor.calls
