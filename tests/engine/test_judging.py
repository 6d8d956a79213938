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
LARGE = "It grew too large."


class Judges:
    """An answer whose grammar keeps `kept` tokens and whose stop string is whole with `stop`."""

    slot, amendable = 2, True

    def __init__(self, kept: int, stop: int | None = None, **verdict: Any) -> None:
        self._verdict = Verdict(kept, **verdict)
        self._stop, self.behind = stop, ""

    def verdict(self, tokens: tuple[int, ...]) -> Verdict:
        anew = tokens == (*TOKENS[: self._verdict.kept], 1)
        return Verdict(len(tokens) - 1, fault=self.behind) if anew else self._verdict

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


@pytest.mark.parametrize(
    ("judges", "calls", "fails"),
    [
        (Judges(0, fault=LARGE), [], True),
        (Judges(2, fault=LARGE), [("amend", 2, 2)], True),
        (Judges(3, stop=3, fault=LARGE), [("amend", 2, 3)], False),
        (Judges(3, stop=2, fault=LARGE), [("amend", 2, 2)], False),
    ],
)
def test_where_a_grammar_cannot_be_followed_its_legal_beginning_stands(
    judges: Judges, calls: list[tuple[object, ...]], fails: bool
) -> None:
    executor = Asked()
    found = judged(executor, judges, RECORD)  # type: ignore[arg-type]

    assert calls == executor.calls
    assert bool(calls) == bool(found.record.emitted) == bool(found.record.tokens)
    assert fails == isinstance(found.failure, ConstraintError)
    assert not found.redrawn


@pytest.mark.parametrize("kept", [0, 2])
def test_a_token_drawn_anew_that_cannot_be_followed_does_not_stand(kept: int) -> None:
    executor, judges = Asked(), Judges(kept, legal=MASK)
    judges.behind = LARGE
    found = judged(executor, judges, RECORD)  # type: ignore[arg-type]

    assert [("redraw", 2, kept, MASK), *[("amend", 2, kept)] * (kept > 0)] == executor.calls
    assert isinstance(found.failure, ConstraintError) and not found.redrawn


def test_answers_without_judges_are_not_asked() -> None:
    executor, judges = Asked(), Judges(1, legal=MASK)
    judges.amendable = False

    assert RECORD == judged(executor, judges, RECORD).record  # type: ignore[arg-type]
    assert not executor.calls
