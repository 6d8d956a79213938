"""Which way of drafting the controller takes: copies, the MTP chain, both, or none."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.engine.controller import Choice, Controller
from flarechat.engine.offer import DRAFTING, Offer, runs_chain
from flarechat.engine.pricing import CostKey
from flarechat.protocol import MAX_DRAFT_TOKENS

CONTEXT = 300
CHAIN = Offer(learned=7)
COPY = Offer("history", 7, 8, "turn")
BOTH = Offer("history", 3, 8, "turn", 7)
FORCED = Offer("history", 4, 8, "turn", 7, forced=2)
Price = Callable[[int, bool], float]

copies = st.tuples(
    st.sampled_from(["history", "context"]), st.integers(1, 7), st.sampled_from([8, 4])
)
offers = st.builds(
    lambda copy, learned: Offer(*copy, "turn", learned) if copy else Offer(learned=learned),
    st.none() | copies,
    st.integers(0, MAX_DRAFT_TOKENS),
)
lanes = st.lists(offers, min_size=1, max_size=4)
rates = st.lists(st.floats(0, 1), min_size=7, max_size=7)
tables = st.fixed_dictionaries(
    dict.fromkeys(("history8", "history4", "context8", "context4", "mtp"), rates)
)
costs = st.lists(st.floats(1, 1000), min_size=15, max_size=15)


def informed(survival: dict[str, list[float]], ms: Sequence[float], lanes: int) -> Controller:
    """A controller that knows every rate and every price of so many lanes."""
    controller = Controller("cpu")
    names = [f"{lanes}/{width}/512" for width in range(1, 9)]
    names += [f"{lanes}/{width}/512/mtp" for width in range(2, 9)]
    controller.load(
        {
            "device": "cpu",
            "survival": {kind: [[rate, 10**9] for rate in row] for kind, row in survival.items()},
            "costs": {name: [value, 50] for name, value in zip(names, ms, strict=True)},
        }
    )
    return controller


def brute(
    offered: Sequence[Offer], survival: dict[str, list[float]], ms: Sequence[float]
) -> dict[tuple[str, int], float]:
    """E/T of every way and K, from the chance of every number of accepted drafts."""
    gains = {}
    for way, k in [("none", 0), *itertools.product(DRAFTING[1:], range(1, 8))]:
        tokens, most, copies, chains = 0.0, 0, 0, 0
        for offer in offered:
            copied = min(offer.count, k) if way in ("copies", "both") else 0
            depth = max(copied, min(offer.learned, k)) if way in ("mtp", "both") else copied
            most, copies, chains = max(most, depth), copies + copied, chains + depth - copied
            right = 1.0
            for place in range(depth + 1):
                kind = f"{offer.source}{offer.match_length}" if place < copied else "mtp"
                kept = survival[kind][place] if place < depth else 0.0
                tokens += right * (1 - kept) * (place + 1)
                right *= kept
        # Copies alone are no round of both, nor is the chain alone.
        if most == k and (way != "both" or (copies and chains)):
            gains[way, k] = tokens / ms[k if way in ("none", "copies") else 7 + k]
    return gains


@settings(deadline=None)
@given(lanes, tables, costs)
def test_it_picks_the_best_of_all_ways_and_widths(
    offered: list[Offer], survival: dict[str, list[float]], ms: list[float]
) -> None:
    gains = brute(offered, survival, ms)
    choice = informed(survival, ms, len(offered)).choose(offered, CONTEXT)

    assert (
        pytest.approx(max(gains.values()), rel=1e-4) == gains[choice.drafting, choice.draft_tokens]
    )


@settings(deadline=None)
@given(st.lists(lanes, min_size=1, max_size=30), st.booleans(), st.randoms(use_true_random=False))
def test_whatever_was_seen_a_choice_stays_within_what_is_offered(
    rounds: list[list[Offer]], adaptive: bool, chance: random.Random
) -> None:
    controller = Controller()
    for offered in rounds * 4:
        choice = controller.choose(offered, CONTEXT, adaptive=adaptive)
        way, k = choice.drafting, choice.draft_tokens
        kinds = [offer.kinds(way, k) for offer in offered]
        sources = {source for offer in offered for source in offer.sources(way, k)}

        assert way in DRAFTING
        assert (way == "none") == (k == 0)
        assert k == max(map(len, kinds))
        if all(offer.learned == 0 for offer in offered):
            assert way in ("none", "copies")
        assert ("mtp" in sources) == runs_chain(way)
        assert bool(sources - {"mtp"}) == (way in ("copies", "both"))
        if not adaptive:
            assert k == max(max(o.count, o.learned) for o in offered)
        accepted = [chance.randint(0, len(kind)) for kind in kinds]
        controller.record(offered, choice, accepted, chance.uniform(1, 90), CONTEXT)


@given(offers, st.sampled_from(DRAFTING), st.integers(0, MAX_DRAFT_TOKENS))
def test_an_offer_names_its_drafts_alike_by_kind_and_by_source(
    offer: Offer, way: str, k: int
) -> None:
    kinds, sources = offer.kinds(way, k), offer.sources(way, k)
    copied = offer.copied(way, k)

    assert len(kinds) == len(sources) == offer.drafted(way, k) <= k
    assert (offer.source,) * copied == sources[:copied]
    assert {"mtp"} >= set(sources[copied:])
    assert [s + str(offer.match_length) if s != "mtp" else s for s in sources] == list(kinds)
    assert kinds == offer.kinds(way, MAX_DRAFT_TOKENS)[:k]


def test_the_words_of_the_contract() -> None:
    offer = Offer("history", 2, 8, "turn", 4)

    assert ("history8", "history8", "mtp", "mtp") == offer.kinds("both", 7)
    assert ("history", "history", "mtp") == offer.sources("both", 3)
    assert ("mtp",) * 4 == offer.sources("mtp", 7)
    assert ("history",) == offer.sources("copies", 1)
    assert () == offer.sources("none", 7)
    assert ("history",) * 2 == Offer("history", 2, 8).sources("both", 7)


@given(offers, st.integers(1, 7), st.sampled_from(DRAFTING), st.integers(0, MAX_DRAFT_TOKENS))
def test_forced_drafts_come_first_and_have_a_name_of_their_own(
    offer: Offer, forced: int, way: str, k: int
) -> None:
    given = replace(offer, count=min(forced + offer.count, 7), forced=forced)
    plain = replace(offer, count=given.count)
    count = min(forced, given.copied(way, k))

    for own, theirs in (
        (given.kinds(way, k), plain.kinds(way, k)),
        (given.sources(way, k), plain.sources(way, k)),
    ):
        assert ("grammar",) * count == own[:count]
        assert theirs[count:] == own[count:]
        assert "grammar" not in own[count:]


def test_forced_drafts_are_counted_on_from_the_first_and_whatever_copies_do() -> None:
    controller = Controller("cpu")
    offer = Offer("history", 5, 8, "turn", forced=3)
    for _ in range(50):
        controller.record([offer], Choice(5, "", drafting="copies"), [3], 40, CONTEXT)

    assert [1.0] * 3 == Controller().survival.rates("grammar", 3)
    assert [1.0] * 3 == controller.survival.rates("grammar", 3)
    assert controller.survival.rates("history8", 5)[3] < 0.1
    assert [1, 2, 3, 4] == controller.survival.expected(offer.kinds("copies", 5))[:4]


# Worlds with known prices and survival.


class World:
    """Prices by width and chain; survival by depth, of copies and of the chain."""

    def __init__(self, price: Price, chain: float, copied: float = 0.0, seed: int = 0) -> None:
        self.price, self.chain, self.copied = price, chain, copied
        self.random = random.Random(seed)

    def play(
        self, controller: Controller, rounds: int, offered: Sequence[Offer] = (CHAIN,)
    ) -> list[Choice]:
        choices, last = [], None
        for _ in range(rounds):
            choice = controller.choose(offered, CONTEXT)
            way, k = choice.drafting, choice.draft_tokens
            accepted = [self.kept(offer.sources(way, k)) for offer in offered]
            ms = self.price(k + 1, runs_chain(way)) * self.random.uniform(0.95, 1.05)
            shape = (k, runs_chain(way))
            controller.record(offered, choice, accepted, ms, CONTEXT, settled=shape == last)
            last = shape
            choices.append(choice)
        return choices

    def kept(self, sources: Sequence[str]) -> int:
        for place, source in enumerate(sources):
            if self.random.random() >= (self.chain if source == "mtp" else self.copied):
                return place
        return len(sources)


def cheap(width: int, chain: bool) -> float:
    return 50 + (width - 1) * (2 + chain)


def dear(width: int, chain: bool) -> float:
    return 25 + (width - 1) * (18 + 3 * chain)


def slow_chain(width: int, chain: bool) -> float:
    return 50 + (width - 1) * (2 + 12 * chain)


def ordinary(choices: Sequence[Choice]) -> list[Choice]:
    return [choice for choice in choices if not choice.probe]


def test_before_anything_is_known_it_drafts_a_few_with_the_chain() -> None:
    choice = Controller().choose([CHAIN], CONTEXT)

    assert ("mtp", 3) == (choice.drafting, choice.draft_tokens)
    assert "3 mtp drafts: 2.2 tok vs 1.0 without" == choice.reason


def test_a_good_head_drives_the_width_up_and_a_bad_one_to_zero() -> None:
    good = ordinary(World(cheap, 0.85).play(Controller(), 600))[-100:]
    bad = ordinary(World(cheap, 0.02).play(Controller(), 600))[-100:]

    assert min(choice.draft_tokens for choice in good) >= 5
    assert {"mtp"} == {choice.drafting for choice in good}
    assert {("none", 0)} == {(choice.drafting, choice.draft_tokens) for choice in bad}


def test_a_head_that_was_bad_is_probed_and_taken_back() -> None:
    controller = Controller()
    World(cheap, 0.02).play(controller, 400)
    late = World(cheap, 0.9, seed=1).play(controller, 4000)

    assert any(choice.probe and choice.drafting == "mtp" for choice in late)
    assert min(choice.draft_tokens for choice in ordinary(late)[-50:]) >= 5


def test_dear_rows_are_noticed_within_an_answer() -> None:
    """Three drafts are a guess; the first probe, to plain decoding, comes early."""
    early = World(dear, 0.6).play(Controller(), 40)

    assert {0, 1} >= {choice.draft_tokens for choice in ordinary(early)[-10:]}


def test_copies_are_preferred_where_they_are_as_right_and_the_chain_is_dear() -> None:
    offer = Offer("history", 7, 8, "turn", 7)
    late = ordinary(World(slow_chain, 0.8, 0.8).play(Controller(), 800, [offer]))[-100:]

    assert {"copies"} == {choice.drafting for choice in late}


def test_a_chain_that_is_righter_than_its_copies_replaces_them() -> None:
    offer = Offer("history", 7, 4, "turn", 7)
    late = ordinary(World(cheap, 0.8, 0.1).play(Controller(), 800, [offer]))[-100:]

    assert {"mtp"} == {choice.drafting for choice in late}


def test_short_sure_copies_are_continued_by_the_chain() -> None:
    late = ordinary(World(cheap, 0.8, 0.97).play(Controller(), 800, [BOTH]))[-100:]
    ways = Counter(choice.drafting for choice in late)

    assert ways["both"] > 90
    assert min(choice.draft_tokens for choice in late if choice.drafting == "both") >= 5


def test_lanes_with_and_without_a_head_share_a_round_that_pays_for_both() -> None:
    pair = [COPY, CHAIN]
    late = ordinary(World(cheap, 0.8, 0.9).play(Controller(), 800, pair))[-100:]
    barren = ordinary(World(dear, 0.6).play(Controller(), 800, [Offer(), CHAIN]))[-100:]

    assert "both" == Counter(choice.drafting for choice in late).most_common(1)[0][0]
    assert {0} == {choice.draft_tokens for choice in barren}


def test_probes_look_at_other_ways_and_stay_within_their_budget() -> None:
    offer = Offer("history", 7, 8, "turn", 7)
    choices = World(slow_chain, 0.8, 0.8).play(Controller(), 4000, [offer])
    probes = [choice for choice in choices if choice.probe]
    spent = sum(slow_chain(c.draft_tokens + 1, runs_chain(c.drafting)) for c in choices)
    full = sum(slow_chain(c.draft_tokens + 1, runs_chain(c.drafting)) for c in probes)

    ages = [int(c.reason.split()[-3]) for c in probes if "never" not in c.reason]

    assert {"mtp", "none"} <= {choice.drafting for choice in probes}
    assert min(ages) >= 8
    assert full < 0.03 * spent
    assert len(probes) <= 20


# Words.


@pytest.mark.parametrize(
    ("way", "k", "offered", "reason"),
    [
        ("mtp", 4, [CHAIN], "4 mtp drafts: 2.4 tok in 40 ms vs 1.0 in 100 without"),
        ("mtp", 1, [CHAIN], "1 mtp draft: 1.6 tok in 40 ms vs 1.0 in 100 without"),
        ("both", 5, [BOTH], "3 copied + 2 mtp drafts: 3.8 tok in 40 ms vs 1.0 in 100 without"),
        ("copies", 2, [BOTH], "2 of 3 copied drafts: 2.6 tok in 40 ms vs 4.0 in 118 with mtp"),
        ("copies", 3, [BOTH], "3 copied drafts: 3.2 tok in 40 ms vs 4.0 in 118 with mtp"),
        ("copies", 2, [COPY], "2 of 7 copied drafts: 2.6 tok in 40 ms vs 1.0 in 100 without"),
        (
            "both",
            5,
            [BOTH, CHAIN],
            "up to 5 copied or mtp drafts: 6.3 tok in 40 ms vs 2.0 in 100 without",
        ),
        (
            "both",
            6,
            [FORCED],
            "2 forced + 2 copied + 2 mtp drafts: 5.3 tok in 40 ms vs 1.0 in 100 without",
        ),
        (
            "copies",
            3,
            [FORCED],
            "2 forced + 1 copied drafts: 3.9 tok in 40 ms vs 5.5 in 118 with mtp",
        ),
        (
            "both",
            5,
            [FORCED, CHAIN],
            "up to 5 forced, copied or mtp drafts: 7.5 tok in 40 ms vs 2.0 in 100 without",
        ),
        (
            "copies",
            2,
            [Offer(count=2, forced=2)],
            "2 forced drafts: 3.0 tok in 40 ms vs 1.0 in 100 without",
        ),
        ("none", 0, [CHAIN], "no draft: 1.0 tok in 40 ms vs 2.6 in 118 with 7 mtp"),
    ],
)
def test_the_reason_names_the_way_and_its_figures(
    way: str, k: int, offered: list[Offer], reason: str
) -> None:
    controller = Controller("cpu")
    names = {CostKey.of(len(offered), w, CONTEXT, learned=c) for w in range(1, 9) for c in (0, 1)}
    dear = {key.name(): [118.0 if key.width > 1 else 100.0, 9] for key in names}
    own = CostKey.of(len(offered), k + 1, CONTEXT, learned=runs_chain(way)).name()
    controller.load({"device": "cpu", "costs": dear | {own: [40.0, 9]}})
    choice = controller.choose(offered, CONTEXT)

    assert (way, k) == (choice.drafting, choice.draft_tokens)
    assert reason == choice.reason


@pytest.mark.parametrize(
    ("offered", "way", "k", "words"),
    [
        (BOTH, "both", 7, "3 copied + 4 mtp drafts"),
        (CHAIN, "mtp", 7, "7 mtp drafts"),
        (COPY, "copies", 7, "7 copied drafts"),
        (Offer("context", 5, 4, "", 5), "copies", 5, "5 copied drafts"),
    ],
)
def test_a_fixed_width_drafts_all_it_can(offered: Offer, way: str, k: int, words: str) -> None:
    choice = Controller().choose([offered], CONTEXT, adaptive=False)

    assert (way, k, f"fixed width: {words}") == (
        choice.drafting,
        choice.draft_tokens,
        choice.reason,
    )
