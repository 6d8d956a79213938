"""What the controller learns of drafts and prices, guesses unmeasured, and saves."""

from __future__ import annotations

import json

import pytest

from flarechat.engine.controller import Choice, Controller
from flarechat.engine.offer import Offer
from flarechat.engine.pricing import CostKey, CostTable, Survival
from tests.engine.test_ways import CONTEXT, World, cheap, ordinary

BOTH = Offer("history", 3, 8, "turn", 7)


def test_a_round_teaches_only_the_places_it_reached_each_in_its_own_class() -> None:
    controller, choice = Controller(), Choice(5, "", drafting="both")
    controller.record([BOTH], choice, [4], 60.0, CONTEXT)
    controller.record([BOTH], choice, [1], 60.0, CONTEXT)

    assert {
        "history8": [[1.0, 2], [0.5, 2], [1.0, 1]],
        "mtp": [[0.0, 0], [0.0, 0], [0.0, 0], [1.0, 1], [0.0, 1]],
    } == controller.state()["survival"]


def test_depths_never_reached_lean_on_the_ones_before_and_on_the_prior() -> None:
    survival = Survival()
    for _ in range(50):
        survival.observe(("history8", "history8", "mtp"), 3)

    sure = (50 * 1.0 + 4 * 0.62) / 54
    assert pytest.approx([0.62, 0.62, sure, sure]) == survival.rates("mtp", 4)
    assert pytest.approx([1.0, 1 + 0.62]) == survival.expected(("mtp",))


def test_what_goes_on_from_forced_drafts_is_as_deep_as_what_begins_a_round() -> None:
    alone, behind = Survival(), Survival()
    for place in range(40):
        kept = int(place % 3 == 0) + int(place % 6 == 0)
        alone.observe(("mtp", "mtp"), kept)
        behind.observe(("grammar",) * 3 + ("mtp", "mtp"), 3 + kept)

    assert alone.rates("mtp", 7) == behind.rates("mtp", 7)
    *_, given, one, two = behind.expected(("grammar",) * 3 + ("mtp", "mtp"))
    first, second = alone.rates("mtp", 2)
    assert 4 == given
    assert pytest.approx([first, first * second]) == [one - given, two - one]


def test_a_run_of_bad_luck_does_not_drop_the_chain() -> None:
    survival = Survival()
    for place in range(300):
        survival.observe(("mtp",), int(place % 5 < 3))
    for _ in range(8):
        survival.observe(("mtp",), 0)

    assert 0.35 < survival.rates("mtp", 1)[0] < 0.5


@pytest.mark.parametrize("measured", [False, True])
def test_rounds_without_the_chain_are_priced_from_those_with_it_and_back(measured: bool) -> None:
    table = CostTable()
    table.observe(CostKey.of(1, 5, CONTEXT, learned=measured), 60.0, settled=True, probe=False)
    plain, chain = (
        [table.ms(CostKey.of(1, width, CONTEXT, learned=learned)) or 0 for width in range(1, 9)]
        for learned in (False, True)
    )

    assert 60.0 == (chain if measured else plain)[4]
    assert plain == sorted(plain) and chain == sorted(chain)
    assert plain[0] == chain[0]
    assert all(p < c for p, c in zip(plain[1:], chain[1:], strict=True))
    assert all(c < p * 1.4 for p, c in zip(plain, chain, strict=True))


def test_a_price_that_only_probes_saw_for_long_goes_on_from_theirs() -> None:
    table, key, other = CostTable(), CostKey(1, 8, 512), CostKey(1, 2, 512)
    for _ in range(10):
        table.observe(key, 200.0, settled=True, probe=False)
    for _ in range(5):
        for _ in range(70):
            table.observe(other, 40.0, settled=True, probe=False)
        table.observe(key, 50.0, settled=True, probe=True)
    believed = table.ms(key)
    table.observe(key, 50.0, settled=True, probe=False)

    assert believed is not None and 50.0 <= believed < 60.0
    assert pytest.approx(believed, abs=5.0) == table.ms(key)


def test_a_chain_that_grows_dear_is_dropped_though_no_two_rounds_are_alike() -> None:
    controller, slow = Controller(), 1.0
    copied = World(lambda width, chain: 20 + 0.4 * width + slow * width * chain, 0.6, 0.9)
    late = []
    for place in range(1200):
        slow = 6.0 if place >= 300 else 1.0
        # Copies turn up in every other round, so the plan never stays what it was.
        copied.play(controller, 1, [Offer("history", 7, 8, "turn", 7)])
        late += copied.play(controller, 1, [Offer(learned=7)])

    assert {"mtp"} == {choice.drafting for choice in ordinary(late[200:300])}
    assert {"none"} == {choice.drafting for choice in ordinary(late[-200:])}


def test_a_settled_price_does_not_follow_rounds_after_a_change_of_plan() -> None:
    table, key = CostTable(), CostKey(1, 4, 512, learned=True)
    for place in range(200):
        table.observe(key, 40.0 if place % 50 == 0 else 60.0, settled=place % 50 == 0, probe=False)

    assert 40.0 == table.ms(key)


def test_the_chain_is_a_price_class_of_its_own() -> None:
    controller = Controller()
    controller.record([BOTH], Choice(3, "", drafting="copies"), [3], 50.0, CONTEXT)
    controller.record([BOTH], Choice(3, "", drafting="mtp"), [3], 70.0, CONTEXT)
    controller.record([BOTH], Choice(3, "", drafting="both"), [3], 70.0, CONTEXT)

    assert {"1/4/512": [50.0, 1], "1/4/512/mtp": [70.0, 2]} == controller.state()["costs"]


def test_a_state_saved_before_there_was_a_chain_is_read_and_the_new_one_survives() -> None:
    old = {
        "device": "cpu",
        "survival": {"history8": [[0.9, 40]]},
        "costs": {"1/1/512": [50.0, 9], "1/8/512": [64.0, 9]},
    }
    controller = Controller("cpu")
    controller.load(old)
    assert old == controller.state()

    World(cheap, 0.7, 0.7).play(controller, 300, [BOTH])
    saved = json.loads(json.dumps(controller.state()))
    again = Controller("cpu")
    again.load(saved)
    assert saved == again.state()
    assert any(name.endswith("/mtp") for name in saved["costs"])


@pytest.mark.parametrize("name", ["1/4/512/grammar", "1/4/512/mtp/mtp", "1/4", "1/4/512/"])
def test_a_price_class_of_another_name_is_left_out(name: str) -> None:
    table = CostTable()
    table.load({name: [50.0, 3]})

    assert {} == table.state()
