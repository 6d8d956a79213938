"""The engine with a draft head: what each request may draft, what its rounds tell, and when the
head works at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, cycle

import pytest
import torch

from flarechat.engine.controller import Choice
from flarechat.engine.offer import DRAFTING, Offer
from flarechat.engine.plan import Plan
from flarechat.protocol import Message, Request, Round, Sampling, Speculation
from tests.engine.conftest import Desk

GREEDY = Sampling(temperature=0)
FIXED = Speculation(adaptive=False)
TEXT = "hello the hello a in"
Make = Callable[..., Desk]


def tokens_of(rounds: list[Round]) -> list[int]:
    return list(chain.from_iterable(r.tokens for r in rounds))


def watch(desk: Desk) -> tuple[list[Plan], list[Plan]]:
    """The plans of the rounds and of the prefill chunks that the engine plays from now on."""
    executor, rounds, chunks = desk.engine.executor, list[Plan](), list[Plan]()
    play, prefill = executor.play, executor.prefill
    executor.play = lambda lanes, plan: rounds.append(plan) or play(lanes, plan)  # type: ignore
    executor.prefill = lambda lanes, inputs, plan: (  # type: ignore[method-assign]
        chunks.append(plan) or prefill(lanes, inputs, plan)
    )
    return rounds, chunks


def drafts_in_turn(desk: Desk, monkeypatch: pytest.MonkeyPatch, *ways: str) -> None:
    """Let the engine draft in these ways one after another, whatever they bring."""
    turn = cycle(ways)

    def choose(offers: Sequence[Offer], context: int, *, adaptive: bool) -> Choice:
        way = next(turn)
        drafts = max(offer.drafted(way, 5) for offer in offers)
        return Choice(drafts, "in turn", drafting=way if drafts else "none")

    monkeypatch.setattr(desk.engine.controller, "choose", choose)


def test_mixed_rounds_tell_of_each_draft_where_it_came_from(learned_desk: Make) -> None:
    made = learned_desk()
    finished, rounds = made.ask(TEXT, sampling=GREEDY, max_tokens=80, speculation=FIXED)
    total = finished.speculation
    kinds = Counter(r.source for r in rounds)

    assert kinds["mtp"] and kinds["context+mtp"]
    for r in rounds:
        assert r.offered == len(r.draft_sources) == r.width - 1
        assert r.emitted == len(r.sources) == len(r.tokens) == r.accepted + 1 - r.clipped
        assert r.draft_sources[: r.accepted] == r.sources[: r.accepted]
        assert "+".join(dict.fromkeys(r.draft_sources)) == r.source.replace("none", "")
        assert list(r.draft_sources) == sorted(r.draft_sources)  # context, then mtp
        assert ("context" in r.draft_sources) == (r.match_length in (4, 8))
    assert {"context", "mtp"} < total.by_source.keys()
    for name in ("offered", "accepted", "emitted"):
        assert getattr(total, name) == sum(getattr(s, name) for s in total.by_source.values())
    assert total.offered == sum(d.offered for d in total.by_depth)
    assert total.emitted == total.accepted + total.rounds - total.clipped == 80
    assert total.by_source["mtp"].accepted > 0 and total.by_source["context"].accepted > 0


def test_copies_continued_by_the_chain_name_the_answer_they_were_copied_from(
    learned_desk: Make,
) -> None:
    made = learned_desk()
    warm = Sampling(seed=2, top_p=0.9, presence_penalty=0.3)
    made.ask(TEXT, sampling=warm, max_tokens=8, speculation=FIXED)
    _, rounds = made.ask(TEXT, sampling=warm, max_tokens=60, speculation=FIXED)
    copied = [r for r in rounds if "history" in r.draft_sources]

    assert "history+mtp" in {r.source for r in copied}
    assert {"r1"} == {r.origin for r in copied}
    assert {""} == {r.origin for r in rounds if r.source == "mtp"}
    assert {0} == {r.match_length for r in rounds if r.source in ("mtp", "none")}


def test_a_copy_that_the_chain_replaces_is_not_told_as_one(
    learned_desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = learned_desk()
    warm = Sampling(seed=2, top_p=0.9, presence_penalty=0.3)
    made.ask(TEXT, sampling=warm, max_tokens=8)
    drafts_in_turn(made, monkeypatch, "mtp")
    finished, rounds = made.ask(TEXT, sampling=warm, max_tokens=8)
    hits = finished.speculation.history

    assert hits.hits8 + hits.hits4 > 0
    assert {("mtp", 0, "")} == {(r.source, r.match_length, r.origin) for r in rounds if r.offered}


@pytest.mark.parametrize(
    ("how", "sources", "reason"),
    [
        (Speculation(adaptive=False, history_drafts=False), {"mtp"}, "fixed width: "),
        (Speculation(adaptive=False, mtp=False), {"context"}, "fixed width: "),
        (Speculation(adaptive=False, draft_tokens=0), set(), "drafting is off"),
        (Speculation(history_drafts=False, mtp=False), set(), "drafting is off"),
        (Speculation(adaptive=False, draft_tokens=2), {"context", "mtp"}, "fixed width: 2 "),
    ],
)
def test_a_request_drafts_only_in_the_ways_it_allows(
    learned_desk: Make, how: Speculation, sources: set[str], reason: str
) -> None:
    made = learned_desk()
    plain, plain_rounds = learned_desk(mtp=False).ask(
        TEXT, sampling=GREEDY, max_tokens=80, speculation=Speculation(draft_tokens=0)
    )
    plans, chunks = watch(made)
    finished, rounds = made.ask(TEXT, sampling=GREEDY, max_tokens=80, speculation=how)

    assert sources == {source for r in rounds for source in r.draft_sources}
    assert reason in {r.reason[: len(reason)] for r in rounds}
    assert max(r.width for r in rounds) <= how.draft_tokens + 1
    assert {how.learned} == {plan.absorb for plan in (*plans, *chunks)}
    assert (plain.text, tokens_of(plain_rounds)) == (finished.text, tokens_of(rounds))


def test_a_round_of_copies_does_no_work_of_the_chain(
    learned_desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = learned_desk()
    plans, _ = watch(made)
    stepped: Counter[str] = Counter()
    head = made.engine.drafter.learned.head  # type: ignore[attr-defined]
    forward = head.forward

    def watched(*given: object) -> object:
        stepped[plans[-1].drafting] += 1
        return forward(*given)

    monkeypatch.setattr(head, "forward", watched)
    drafts_in_turn(made, monkeypatch, "copies", "mtp", "none", "both")
    made.ask(TEXT, sampling=GREEDY, max_tokens=80)
    ways, steps = Counter(plan.drafting for plan in plans), Counter[str]()
    for plan in plans:
        steps[plan.drafting] += plan.draft_tokens if plan.drafting in ("mtp", "both") else 0

    assert min(ways[way] for way in DRAFTING) > 2
    assert +steps == stepped


def test_a_lane_without_mtp_beside_one_with_it_drafts_no_chain_and_loses_no_rows(
    learned_desk: Make,
) -> None:
    made = learned_desk(lanes=2)
    hows = [Speculation(adaptive=False, history_drafts=False, mtp=mtp) for mtp in (True, False)]
    requests = [made.request(TEXT, sampling=GREEDY, max_tokens=50, speculation=h) for h in hows]
    for request in requests:
        made.engine.submit(request)
    made.run()
    with_it, without = (made.rounds(request.id) for request in requests)

    assert {2} <= {r.lanes for r in without}
    assert {"none"} == {r.source for r in without}
    assert tokens_of(with_it) == tokens_of(without)
    assert sum(r.accepted for r in with_it) > 10
    learned = made.engine.drafter.learned  # type: ignore[attr-defined]
    kept, rows = learned.cache.tensors(), len(made.engine.residents.held(0)) - 1
    fresh = learned_desk(lanes=2)
    again, _ = fresh.answer(
        Request(id="x", messages=requests[0].messages, sampling=GREEDY, max_tokens=50)
    )
    alone = fresh.engine.drafter.learned.cache.tensors()  # type: ignore[attr-defined]
    assert again.text == made.finished(requests[0].id).text
    for name, tensor in kept.items():
        torch.testing.assert_close(
            tensor[0, :, :rows], alone[name][0, :, :rows], atol=2e-4, rtol=1e-3
        )


def test_ratio_and_match_lanes_share_rounds_and_each_keeps_its_promise(
    learned_desk: Make,
) -> None:
    made = learned_desk(lanes=2)
    seeded, free = Sampling(seed=3, top_k=20), Sampling(temperature=0.9, top_k=20)
    requests = [made.request(TEXT, sampling=s, max_tokens=50) for s in (seeded, free)]
    for request in requests:
        made.engine.submit(request)
    made.run()
    alone, _ = learned_desk(mtp=False).ask(TEXT, sampling=seeded, max_tokens=50)

    assert alone.text == made.finished(requests[0].id).text
    assert 50 == made.finished(requests[1].id).usage.completion_tokens


def test_a_request_that_fails_to_open_leaves_no_copies_to_the_next(
    learned_desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = learned_desk()

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    made.ask(TEXT, sampling=GREEDY, max_tokens=30, speculation=Speculation(mtp=False))
    with monkeypatch.context() as patch:
        patch.setattr(made.engine.drafter.learned, "_catch_up", fail)  # type: ignore[attr-defined]
        failed, _ = made.ask(TEXT, sampling=GREEDY, max_tokens=30)
    off = Speculation(history_drafts=False, mtp=False)
    finished, rounds = made.ask(TEXT, sampling=GREEDY, max_tokens=30, speculation=off)

    assert failed.error is not None and "out of memory" in failed.error.message
    assert {"none"} == {r.source for r in rounds}
    assert (0, 0) == (
        finished.speculation.context.lookups,
        finished.speculation.history.lookups,
    )


def test_the_controllers_state_with_a_chain_goes_into_the_next_start(learned_desk: Make) -> None:
    made = learned_desk()
    finished, _ = made.ask(TEXT, sampling=GREEDY, max_tokens=60)
    saved = finished.controller
    assert saved is not None and "mtp" in saved["survival"]
    assert any(name.endswith("/mtp") for name in saved["costs"])

    other = learned_desk()
    other.ask("a", sampling=GREEDY, max_tokens=1, controller=saved)
    assert saved["survival"].items() <= other.engine.controller.state()["survival"].items()


def test_an_edited_chat_restores_a_prefix_and_drafts_as_a_fresh_engine_does(
    learned_desk: Make,
) -> None:
    made = learned_desk()
    made.ask("hello the hello the hello a", sampling=GREEDY, max_tokens=30, speculation=FIXED)
    message = Message(role="user", content="hello the hello the hello in")
    request = Request(
        id="edited", messages=(message,), sampling=GREEDY, max_tokens=30, speculation=FIXED
    )
    warm, rounds = made.answer(request)
    cold, cold_rounds = learned_desk().answer(request)

    assert warm.usage.restored_tokens > 5
    assert cold.text == warm.text
    drafts = [[r.accepted for r in played if r.source == "mtp"] for played in (rounds, cold_rounds)]
    assert sum(drafts[1]) > 0 and drafts[0][:3] == drafts[1][:3]
