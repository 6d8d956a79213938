"""A slot whose last request was never closed, as when the engine failed to start it."""

from __future__ import annotations

import pytest

from flarechat.engine.drafters.copies import CopyDrafter
from flarechat.engine.offer import Offer
from tests.engine.mtp_reference import workbench
from tests.engine.tiny import CPU, PROMPT, reference

LOOP = [4, 5, 6, 7, 8] * 3


@pytest.mark.parametrize("again", [True, False])
def test_a_request_that_forbids_copies_gets_none_whatever_came_before(again: bool) -> None:
    drafter = CopyDrafter(1, CPU)
    drafter.open(0, "failed", LOOP, restored=0, history=True, mtp=True)
    assert "context" == drafter.stage(0, 7).source
    drafter.open(0, "next", LOOP, restored=0, history=again, mtp=True)

    assert again == (drafter.stage(0, 7) != Offer())


@pytest.mark.parametrize("again", [True, False])
def test_a_request_without_mtp_gets_no_chain_whatever_came_before(again: bool) -> None:
    drafter = workbench(reference())[0].executor.drafter
    drafter.open(0, "failed", PROMPT, restored=0, history=True, mtp=True)
    assert 5 == drafter.stage(0, 5).learned
    drafter.open(0, "next", PROMPT, restored=0, history=True, mtp=again)

    assert (5 if again else 0) == drafter.stage(0, 5).learned
