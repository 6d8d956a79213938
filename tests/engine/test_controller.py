"""The controller in small worlds whose best width is known."""

from __future__ import annotations

import itertools
import json
import random
import sys
from types import FrameType

import pytest

from flarechat.engine import controller as controller_module
from flarechat.engine.controller import Choice, Controller
from flarechat.engine.offer import Offer

COPY = Offer("history", 7, 8, "turn")
CONTEXT = 300


class World:
    """Rounds with a known price by width and a known survival by depth."""

    def __init__(self, ms: dict[int, float], survival: float, seed: int = 0) -> None:
        self.ms, self.survival, self.random = ms, survival, random.Random(seed)

    def accepted(self, offered: int) -> int:
        kept = 0
        while kept < offered and self.random.random() < self.survival:
            kept += 1
        return kept

    def play(
        self, controller: Controller, rounds: int, offer: Offer = COPY, *, noise: float = 0.05
    ) -> list[Choice]:
        choices = []
        for _ in range(rounds):
            choice = controller.choose([offer], CONTEXT)
            kept = self.accepted(min(choice.draft_tokens, offer.count))
            ms = self.ms[choice.draft_tokens + 1] * (1 + self.random.uniform(-noise, noise))
            controller.record([offer], choice, [kept], ms, CONTEXT)
            choices.append(choice)
        return choices

    def best(self) -> int:
        def gain(depth: int) -> float:
            return sum(self.survival**d for d in range(depth + 1)) / self.ms[depth + 1]

        return max(range(8), key=gain)


FLAT = {w: 30.0 + w for w in range(1, 9)}
STEEP = {w: 30.0 * w for w in range(1, 9)}
KNEE = {w: 30.0 + w if w <= 4 else 30.0 + 25 * (w - 3) for w in range(1, 9)}


def ordinary(choices: list[Choice]) -> list[int]:
    return [c.draft_tokens for c in choices if not c.probe]


@pytest.mark.parametrize("ms", [FLAT, STEEP, KNEE], ids=["flat", "steep", "knee"])
@pytest.mark.parametrize("survival", [0.05, 0.5, 0.9])
def test_it_settles_within_a_few_percent_of_the_best_width(
    ms: dict[int, float], survival: float
) -> None:
    world, controller = World(ms, survival), Controller()
    late = ordinary(world.play(controller, 3000))[-200:]

    def gain(depth: int) -> float:
        return sum(survival**d for d in range(depth + 1)) / ms[depth + 1]

    average = sum(map(gain, late)) / len(late)
    assert average > 0.93 * gain(world.best())


def test_zero_is_not_a_trap() -> None:
    controller = Controller()
    hopeless = ordinary(World(STEEP, 0.02).play(controller, 400))[-50:]
    assert [0] * 50 == hopeless

    recovered = ordinary(World(FLAT, 0.95, seed=1).play(controller, 3000))[-50:]
    assert min(recovered) >= 5


def test_the_top_is_not_a_trap() -> None:
    controller = Controller()
    assert min(ordinary(World(FLAT, 0.95).play(controller, 400))[-50:]) >= 5

    fallen = ordinary(World(STEEP, 0.3, seed=2).play(controller, 3000))[-50:]
    assert max(fallen) <= 1


def test_probes_are_paid_from_their_own_budget_and_back_off() -> None:
    world, controller = World(STEEP, 0.1), Controller()
    choices = world.play(controller, 4000)
    probes = [i for i, c in enumerate(choices) if c.probe]
    lost = sum(STEEP[choices[i].draft_tokens + 1] - 30.0 for i in probes)
    spent = sum(STEEP[c.draft_tokens + 1] for c in choices)

    assert probes
    assert lost < 0.06 * spent
    gaps = [b - a for a, b in itertools.pairwise(probes)]
    assert max(gaps) > 2 * min(gaps)


def test_a_probe_never_overwrites_the_ordinary_mean() -> None:
    controller = Controller()
    World(FLAT, 0.9).play(controller, 50, noise=0)
    before = controller.costs.state()
    controller.record(
        [COPY], Choice(7, "probe", probe=True, drafting="copies"), [0], 900.0, CONTEXT
    )

    assert before == controller.costs.state()


def test_stalls_and_unsettled_rounds_do_not_move_a_mean() -> None:
    controller, choice = Controller(), Choice(3, "", drafting="copies")
    for _ in range(20):
        controller.record([COPY], choice, [3], 40.0, CONTEXT)
    before = controller.costs.state()
    controller.record([COPY], choice, [3], 400.0, CONTEXT)
    controller.record([COPY], choice, [3], 70.0, CONTEXT, settled=False)
    assert before == controller.costs.state()

    controller.record([COPY], choice, [3], 70.0, CONTEXT)
    ((value, _),) = controller.costs.state().values()
    assert 40.0 < value <= 40.0 + 0.25 * 0.25 * 40.0


def test_one_cold_first_sample_does_not_flip_the_choice_for_good() -> None:
    controller = Controller()
    controller.record([COPY], Choice(7, "", drafting="copies"), [6], 2000.0, CONTEXT)
    late = ordinary(World(FLAT, 0.9).play(controller, 3000))[-50:]

    assert min(late) >= 5


def test_a_stall_in_a_widths_first_round_does_not_bar_it() -> None:
    controller, cheap = Controller(), {w: 20.0 + 0.2 * w for w in range(1, 9)}
    for _ in range(20):
        controller.record([COPY], Choice(0, ""), [0], cheap[1], CONTEXT)
    controller.record([COPY], Choice(7, "", drafting="copies"), [6], 2000.0, CONTEXT, settled=False)
    late = ordinary(World(cheap, 0.9).play(controller, 600))[-50:]

    assert min(late) >= 5


def test_what_is_four_times_dearer_three_times_running_is_believed() -> None:
    controller = Controller()
    for _ in range(10):
        controller.record([COPY], Choice(7, "", drafting="copies"), [0], 20.0, CONTEXT)
    for _ in range(3):
        controller.record([COPY], Choice(7, "", drafting="copies"), [0], 200.0, CONTEXT)

    ((value, _),) = controller.costs.state().values()
    assert 200.0 == value


def test_a_fixed_width_offers_everything_and_says_so() -> None:
    choice = Controller().choose([Offer("context", 3, 4)], CONTEXT, adaptive=False)

    assert (3, False) == (choice.draft_tokens, choice.probe)
    assert "fixed" in choice.reason


def test_without_an_offer_the_width_is_one_and_says_why() -> None:
    assert Choice(0, "no draft to offer") == Controller().choose([Offer()], CONTEXT)


def test_every_choice_has_its_reason_in_words() -> None:
    for choice in World(KNEE, 0.6).play(Controller(), 200):
        assert len(choice.reason.split()) > 3


def test_lanes_share_a_width_that_pays_for_all() -> None:
    controller = Controller()
    World(STEEP, 0.9).play(controller, 200)
    for depth in range(8):
        for _ in range(5):
            controller.record(
                [COPY, Offer()],
                Choice(depth, "", drafting="copies"),
                [depth, 0],
                STEEP[depth + 1],
                300,
            )
    choice = controller.choose([COPY, Offer()], CONTEXT)

    assert 0 == choice.draft_tokens


def test_state_survives_json_and_costs_belong_to_one_device() -> None:
    controller = Controller("cpu-a")
    World(KNEE, 0.8).play(controller, 300)
    saved = json.loads(json.dumps(controller.state()))
    same, other = Controller("cpu-a"), Controller("cpu-b")
    same.load(saved)
    other.load(saved)

    assert saved == same.state()
    assert saved["survival"] == other.state()["survival"]
    assert {} == other.state()["costs"]


@pytest.mark.parametrize(
    "junk",
    [
        {},
        {"survival": 3},
        {"survival": {"x": [["a"]]}},
        {"device": "cpu", "costs": {"a": 1, "1/2": [3, 4]}},
    ],
)
def test_a_damaged_saved_state_is_left_out(junk: dict[str, object]) -> None:
    controller = Controller("cpu")
    controller.load(junk)

    assert {} == controller.state()["costs"]
    assert 7 == controller.choose([COPY], CONTEXT).draft_tokens


def test_words_are_made_only_for_the_options_that_are_named() -> None:
    """What one more draft costs the choice: its price and E/T, and nothing that looks at lanes."""

    def calls(offer: Offer) -> int:
        controller, seen = Controller(), list[str]()

        def look(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename == controller_module.__file__:
                seen.append(frame.f_code.co_name)

        sys.setprofile(look)
        try:
            controller.choose([offer] * 4, CONTEXT)
        finally:
            sys.setprofile(None)
        return len(seen)

    assert calls(Offer(learned=7)) - calls(Offer(learned=6)) < 16
