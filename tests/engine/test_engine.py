"""The engine on a tiny model: events, ends, stops, copies, lanes, restored prefixes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
import torch

from flarechat.engine.drafters.history import HistorySource
from flarechat.errors import SettingsError
from flarechat.protocol import (
    Delta,
    Finished,
    Message,
    Progress,
    Request,
    Round,
    Sampling,
    Speculation,
    Started,
)
from tests.engine.conftest import Desk

GREEDY = Sampling(temperature=0)
WARM = Sampling(temperature=0.9, top_k=20, top_p=0.95, repetition_penalty=1.1)
Make = Callable[..., Desk]


def tokens_of(rounds: list[Round]) -> list[int]:
    return list(chain.from_iterable(r.tokens for r in rounds))


def history_of(desk: Desk) -> HistorySource:
    source = desk.engine.drafter.sources[1]  # type: ignore[attr-defined]
    assert isinstance(source, HistorySource)
    return source


def test_events_tell_the_story_in_order_and_their_sums_agree(desk: Make) -> None:
    made = desk()
    made.ask("hello hello hello hello", sampling=GREEDY, max_tokens=40)
    finished, rounds = made.ask("hello hello hello hello", sampling=GREEDY, max_tokens=40)
    kinds = [type(e) for e in made.of("r2")]
    total = finished.speculation

    assert [Started, Progress] == kinds[:2]
    assert Finished is kinds[-1]
    assert len(rounds) == total.rounds
    assert sum(r.offered for r in rounds) == total.offered
    assert sum(r.accepted for r in rounds) == total.accepted
    assert sum(r.emitted for r in rounds) == total.emitted == finished.usage.completion_tokens == 40
    assert total.emitted == total.accepted + total.rounds - total.clipped
    assert total.offered == sum(d.offered for d in total.by_depth)
    assert total.accepted == sum(d.accepted for d in total.by_depth)
    assert total.offered == sum(s.offered for s in total.by_source.values())
    assert total.emitted == sum(s.emitted for s in total.by_source.values())
    assert total.rounds == sum(total.acceptance_histogram)
    assert total.offered > 0
    for r in rounds:
        assert r.emitted == len(r.tokens) == len(r.sources) == r.accepted + 1 - r.clipped
        assert r.width >= r.offered + 1
    shown = "".join(e.text for e in made.of("r2") if isinstance(e, Delta))
    assert finished.text == shown


def test_a_budget_a_context_and_a_terminal_token_each_end_with_their_reason(desk: Make) -> None:
    made = desk(context=48)
    short, _ = made.ask("a", sampling=GREEDY, max_tokens=5)
    full, _ = made.ask("a", sampling=GREEDY, max_tokens=500)

    assert ("length", 5) == (short.reason, short.usage.completion_tokens)
    assert ("context", 48) == (full.reason, full.usage.context)
    terminal = tokens_of(made.rounds("r1"))[2]
    made.engine.language = type(made.engine.language)(
        made.engine.language.tokenizer, made.engine.language.encode_chat, (terminal,)
    )
    stopped, rounds = made.ask("a", sampling=GREEDY, max_tokens=20)
    said = tokens_of(rounds)
    assert "stop" == stopped.reason
    assert terminal == said[-1]
    assert terminal not in said[:-1]


def test_a_prompt_that_does_not_fit_is_refused_and_the_engine_goes_on(desk: Make) -> None:
    made = desk(context=48)
    refused, rounds = made.ask("x" * 100)

    assert ("error", [], "PromptTooLongError") == (refused.reason, rounds, refused.error.kind)  # type: ignore[union-attr]
    assert "48" not in refused.text
    assert made.ask("a", max_tokens=3)[0].usage.completion_tokens == 3


@pytest.mark.parametrize(
    "boot", [{"context": 5000}, {"lanes": 9}, {"dtype": "int3"}, {"device": "tpu"}]
)
def test_a_setting_the_model_cannot_take_names_its_value(
    desk: Make, boot: dict[str, object]
) -> None:
    with pytest.raises(SettingsError, match=str(next(iter(boot.values())))):
        desk(**boot)


@pytest.mark.parametrize("place", range(12))
def test_a_stop_string_ends_text_tokens_usage_and_state_at_one_token(
    desk: Make, place: int
) -> None:
    made = desk()
    free, rounds = made.ask("hello hello hello", sampling=GREEDY, max_tokens=40)
    tokenizer = made.engine.language.tokenizer
    whole = [
        free.text[i : i + 3] for i in range(len(free.text)) if "\ufffd" not in free.text[i : i + 3]
    ]
    stop = whole[place]
    cut = free.text.index(stop)
    again = made.request("hello hello hello", sampling=GREEDY, max_tokens=40, stop=(stop, "never"))
    stopped, stopped_rounds = made.answer(again)
    said = tokens_of(stopped_rounds)

    assert ("stop", stop, free.text[:cut]) == (stopped.reason, stopped.stop, stopped.text)
    assert tokens_of(rounds)[: len(said)] == said
    assert len(said) == stopped.usage.completion_tokens == stopped.speculation.emitted
    assert stop in tokenizer.decode(said)
    assert stop not in tokenizer.decode(said[:-1])
    slot = made.engine.residents.claim([0], [*said, 0])[0]
    fresh = desk()
    fresh.answer(Request(id="r", messages=again.messages, sampling=GREEDY, max_tokens=len(said)))
    for name in ("pending", "consumed", "generated", "counts", "prompt_seen"):
        ours, plain = made.engine.pool.tensors()[name], fresh.engine.pool.tensors()[name]
        assert torch.equal(plain[slot], ours[slot]), name
    rows = int(made.engine.pool.consumed[slot])
    for name, tensor in made.engine.executor.target.kv.tensors().items():  # type: ignore[attr-defined]
        plain = fresh.engine.executor.target.kv.tensors()[name]  # type: ignore[attr-defined]
        torch.testing.assert_close(
            tensor[slot, :, :rows], plain[slot, :, :rows], atol=2e-4, rtol=1e-3
        )


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        Sampling(seed=5),
        Sampling(seed=6, temperature=0.9, top_k=20, repetition_penalty=1.2),
    ],
)
def test_match_says_the_same_at_every_width_and_policy(desk: Make, sampling: Sampling) -> None:
    plain = Speculation(draft_tokens=0)
    expected = desk().ask(
        "hello hello the hello", sampling=sampling, max_tokens=60, speculation=plain
    )
    for depth in range(1, 8):
        for adaptive in (False, True):
            how = Speculation(draft_tokens=depth, adaptive=adaptive)
            made = desk()
            for _ in range(2):
                finished, rounds = made.ask(
                    "hello hello the hello", sampling=sampling, max_tokens=60, speculation=how
                )
                assert expected[0].text == finished.text
                assert tokens_of(expected[1]) == tokens_of(rounds)


def test_a_second_answer_copies_the_first_and_names_it(desk: Make) -> None:
    made = desk()
    first, _ = made.ask("the hello", sampling=GREEDY, max_tokens=60)
    second, rounds = made.ask("the hello", sampling=GREEDY, max_tokens=60)
    copied = [r for r in rounds if r.source == "history"]

    assert first.text == second.text
    assert copied
    assert {"r1"} == {r.origin for r in copied if r.index < 3} or copied[0].origin == "r1"
    assert second.speculation.rounds < first.speculation.rounds
    assert second.speculation.history.hits8 + second.speculation.history.hits4 > 0


def test_drafting_off_offers_nothing_keeps_nothing_and_says_so(desk: Make) -> None:
    made = desk()
    off = Speculation(history_drafts=False, mtp=False)
    _, rounds = made.ask("hello hello hello", sampling=GREEDY, max_tokens=30, speculation=off)

    assert {("none", 1, "drafting is off")} == {(r.source, r.width, r.reason) for r in rounds}
    assert 0 == len(history_of(made).index)


def test_only_emitted_tokens_enter_the_history(desk: Make) -> None:
    made = desk()
    finished, rounds = made.ask("hello hello", sampling=WARM, max_tokens=50)
    cells = history_of(made).index._cells.values()

    assert tokens_of(rounds) == [cell.token for cell in cells]
    assert finished.usage.completion_tokens == len(history_of(made).index)


def test_a_failed_round_leaves_no_trace_and_ends_only_its_requests(
    desk: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desk()
    expected, _ = made.ask("the", sampling=GREEDY, max_tokens=20)
    kept = len(history_of(made).index)
    executor = made.engine.executor

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory\nmore")

    with monkeypatch.context() as patch:
        patch.setattr(executor, "play", fail)
        failed, rounds = made.ask("hello", sampling=GREEDY, max_tokens=20)

    assert ("error", []) == (failed.reason, rounds)
    assert "out of memory" in failed.error.message  # type: ignore[union-attr]
    assert kept == len(history_of(made).index)
    assert expected.text == made.ask("the", sampling=GREEDY, max_tokens=20)[0].text


@pytest.mark.parametrize("failure", [MemoryError(), KeyError("x"), RuntimeError("torn\nmore")])
def test_whatever_fails_ends_its_request_and_not_the_engine(
    desk: Make, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    made = desk()

    def fail(*_: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(made.engine.executor, "play", fail)
        failed, _ = made.ask("hello", sampling=GREEDY, max_tokens=5)

    assert "error" == failed.reason
    assert "5" == str(made.ask("hello", sampling=GREEDY, max_tokens=5)[0].usage.completion_tokens)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("\udcff", {}),
        ("a", {"controller": {"survival": {"history8": [[0.5, float("inf")]]}}}),
        ("a", {"controller": {"costs": {"1/1/512": {"a": 1}}, "survival": {"x": 10**400}}}),
    ],
)
def test_a_message_or_a_saved_state_from_hell_does_not_end_the_engine(
    desk: Make, text: str, fields: dict[str, object]
) -> None:
    made = desk()
    made.ask(text, sampling=GREEDY, max_tokens=2, **fields)

    assert 3 == made.ask("a", sampling=GREEDY, max_tokens=3)[0].usage.completion_tokens


def test_a_chat_is_not_evicted_for_a_few_shared_tokens_while_a_slot_is_empty(desk: Make) -> None:
    made = desk(lanes=2)
    made.ask("hello " * 8, sampling=GREEDY, max_tokens=4)
    made.ask("the", sampling=GREEDY, max_tokens=4)
    again, _ = made.ask("hello " * 8, sampling=GREEDY, max_tokens=4)

    assert again.usage.prompt_tokens - 1 == again.usage.restored_tokens


def test_cancel_lands_within_a_round_and_keeps_what_was_said(desk: Make) -> None:
    made = desk()
    request = made.request("hello", sampling=GREEDY, max_tokens=100)
    made.engine.submit(request)
    for _ in range(6):
        made.engine.step()
    said = len(tokens_of(made.rounds(request.id)))
    made.engine.cancel(request.id)

    finished = made.finished(request.id)
    assert ("cancelled", said) == (finished.reason, finished.usage.completion_tokens)
    assert not made.engine.busy
    free, _rounds = made.ask("hello", sampling=GREEDY, max_tokens=100)
    assert free.text.startswith(finished.text)


def test_cancel_in_prefill_and_in_the_queue(desk: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flarechat.engine.engine.PREFILL_CHUNK", 4)
    made = desk()
    first, queued = made.request("hello " * 12, max_tokens=9), made.request("a", max_tokens=9)
    made.engine.submit(first)
    made.engine.submit(queued)
    made.engine.step()
    made.engine.cancel(queued.id)
    made.engine.cancel(first.id)

    assert not made.engine.busy
    assert ["cancelled"] * 2 == [made.finished(r.id).reason for r in (first, queued)]
    again, _ = made.ask("hello " * 12, sampling=GREEDY, max_tokens=9)
    assert 0 < again.usage.restored_tokens <= 4
    assert desk().ask("hello " * 12, sampling=GREEDY, max_tokens=9)[0].text == again.text


@pytest.mark.parametrize("lanes", [2, 4])
def test_requests_side_by_side_say_what_they_say_alone(desk: Make, lanes: int) -> None:
    texts = ["hello hello hello", "the", "a b c a b c a b", "in the hello", "l" * 30]
    samplings = [GREEDY, Sampling(seed=1), WARM, Sampling(temperature=0.7, seed=9), GREEDY]
    budgets = [30, 7, 21, 40, 12]
    together, fields = desk(lanes=lanes), []
    for text, sampling, budget in zip(texts, samplings, budgets, strict=True):
        seeded = Sampling(**{**{f: getattr(sampling, f) for f in Sampling.__slots__}, "seed": 3})
        fields.append((text, {"sampling": seeded, "max_tokens": budget}))
    requests = [together.request(text, **field) for text, field in fields]  # type: ignore[arg-type]
    for request in requests:
        together.engine.submit(request)
    together.run()

    assert max(r.lanes for q in requests for r in together.rounds(q.id)) == lanes
    for request, (text, field) in zip(requests, fields, strict=True):
        alone, _ = desk().ask(text, **field)  # type: ignore[arg-type]
        assert alone.text == together.finished(request.id).text


def test_the_next_turn_restores_the_prefix_and_says_what_a_fresh_engine_says(desk: Make) -> None:
    made = desk()
    first, _ = made.ask("the", sampling=GREEDY, max_tokens=12)
    turn = (
        Message(role="user", content="the"),
        Message(role="assistant", content=first.text),
        Message(role="user", content="hello"),
    )
    request = Request(id="next", messages=turn, sampling=GREEDY, max_tokens=20)
    warm, _ = made.answer(request)
    cold, _ = desk().answer(request)

    assert warm.usage.restored_tokens > 5
    assert 0 == cold.usage.restored_tokens
    assert cold.text == warm.text


def test_log_probabilities_are_the_models_own(desk: Make) -> None:
    made = desk()
    request = made.request("hello hello hello", sampling=WARM, max_tokens=30, logprobs=3)
    _, rounds = made.answer(request)
    said = tokens_of(rounds)
    told = [p for r in rounds for p in r.logprobs]
    prompt = made.engine.language.encode_chat(request.messages)
    text = [*prompt, *said]
    forced = desk().engine
    forced.pool.open(0, text, sampling=GREEDY, seed=0, match=True, budget=1, eos=())
    from flarechat.engine.plan import LawShape, Plan
    from flarechat.engine.slot import Lanes

    plan = Plan(len(text) - 1, 128, LawShape(1))
    forced.pool.start(0)
    with torch.no_grad():
        _, logits = forced.executor.target.verify(  # type: ignore[attr-defined]
            Lanes(forced.pool, (0,)), torch.tensor([text]), plan
        )
    expected = logits[0].log_softmax(-1)

    assert said == [p.id for p in told]
    for place, told_one in enumerate(told):
        row = expected[len(prompt) - 1 + place]
        assert abs(float(row[told_one.id]) - told_one.logprob) < 1e-3
        assert [int(i) for i in row.topk(3).indices] == [t.id for t in told_one.top]


def test_the_controllers_state_comes_with_the_end_and_goes_into_the_next_start(desk: Make) -> None:
    made = desk()
    made.ask("hello hello hello", sampling=GREEDY, max_tokens=40)
    finished, _ = made.ask("hello hello hello", sampling=GREEDY, max_tokens=40)
    assert finished.controller is not None and finished.controller["survival"]

    other = desk()
    other.ask("a", sampling=GREEDY, max_tokens=2, controller=finished.controller)
    assert (
        finished.controller["survival"].keys() <= other.engine.controller.state()["survival"].keys()
    )


def test_auto_acceptance_follows_the_seed(desk: Make) -> None:
    made = desk()
    for sampling in (Sampling(), Sampling(seed=1), GREEDY):
        made.ask("a", sampling=sampling, max_tokens=2)
    started = [e for e in made.events if isinstance(e, Started)]

    assert ["ratio", "match", "match"] == [s.acceptance for s in started]
    assert 1 == started[1].sampling.seed
