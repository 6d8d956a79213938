"""Requests that come, fail, are cancelled and go on from one another in four slots: each answer is
the one that an engine gives which has seen nothing before."""

from __future__ import annotations

import random as chance
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from flarechat.engine.engine import PREFILL_CHUNK
from flarechat.engine.layers.moe import MoE
from flarechat.protocol import Finished, Message, Request, Sampling, Speculation, Started
from tests.engine.conftest import Desk
from tests.engine.qwen38.test_end_to_end import fresh_desk
from tests.engine.test_flights import late

STEPS = 180
ALIVE = 4
LONG = (256, 257, 258, 300, 505, 510)
SPECULATIONS = tuple(Speculation(draft_tokens=k, adaptive=k == 7) for k in (7, 5, 0))


class Failing:
    """Experts that fail when `left` calls are over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, plain = 0, MoE.__call__

        def call(moe: MoE, x: Tensor) -> Tensor:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("planted")
            return plain(moe, x)

        monkeypatch.setattr(MoE, "__call__", call)


def plain(made: Desk) -> Desk:
    """An engine as it is, beside one that is `late`: two rounds may be under way in that."""
    return made


def tokens_of(messages: Sequence[Message], thinking: bool = True) -> list[int]:
    return [int(word) for word in messages[0].content.split()]


def listening(**boot: object) -> Desk:
    """An engine whose messages are token numbers."""
    made = fresh_desk("nvfp4", **boot)
    made.engine.language = replace(made.engine.language, encode_chat=tokens_of)
    return made


def drawn_prompt(made: Desk, draw: chance.Random) -> list[int]:
    """What a free slot holds, or only its beginning, and more; one or two tokens; a long text; or
    one full of ends."""
    engine, kind = made.engine, draw.random()
    usual = range(5, 250)
    free = engine._free_slots()
    held = engine.residents.held(draw.choice(free)) if free else []
    if kind < 0.6 and 0 < len(held) < 460:
        kept = len(held) if kind < 0.4 else draw.randrange(len(held))
        return held[:kept] + draw.choices(usual, k=draw.randrange(1, 6))
    if kind < 0.7:
        return draw.choices(usual, k=draw.randrange(1, 3))
    if kind < 0.85:
        return draw.choices(usual, k=draw.choice(LONG))
    return [draw.choice((*engine.language.eos, *draw.choices(usual, k=3))) for _ in range(40)]


def drawn_request(made: Desk, draw: chance.Random) -> Request:
    law = Sampling(temperature=draw.choice((0.0, 1.0)), top_k=20, seed=draw.randrange(99))
    fields: dict[str, Any] = {"stop": tuple("etaoinsrh")} if draw.random() < 0.4 else {}
    return made.request(
        " ".join(map(str, drawn_prompt(made, draw))), max_tokens=draw.choice((1, 3, 20, 40)),
        sampling=law, speculation=draw.choice(SPECULATIONS), thinking=False, **fields,
    )  # fmt: skip


def played(made: Desk, draw: chance.Random, failing: Failing) -> list[Request]:
    """All requests of many steps, between which some are cancelled and some fail."""
    engine, asked = made.engine, list[Request]()
    for _ in range(STEPS):
        alive = [a.request.id for a in (*engine.playing, *engine.prefilling)]
        if len(alive) + len(engine.waiting) < ALIVE and draw.random() < 0.5:
            asked.append(drawn_request(made, draw))
            engine.submit(asked[-1])
        luck = draw.random()
        if luck < 0.12 and alive:
            engine.cancel(draw.choice(alive))
        elif luck < 0.15:
            failing.left = draw.randrange(1, 30)
        engine.step()
    failing.left = 0
    made.run()
    return asked


@pytest.mark.parametrize(("seed", "kind"), [(1, plain), (2, plain), (3, late)])
def test_every_answer_is_that_of_an_engine_that_has_seen_nothing(
    seed: int, kind: Callable[[Desk], Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    used, fresh = kind(listening(lanes=4)), listening()
    asked = played(used, chance.Random(seed), Failing(monkeypatch))
    ends = {request.id: used.finished(request.id) for request in asked}
    started = [event for event in used.events if isinstance(event, Started)]

    assert {"cancelled", "error", "length", "stop"} <= {end.reason for end in ends.values()}
    assert sum(event.restored_tokens > 0 for event in started) >= 8
    for request in asked:
        own = ends[request.id]
        if own.reason in ("cancelled", "error"):
            continue
        fresh.engine.residents.forget(0)
        alone = fresh.answer(replace(request, id=f"{request.id} alone"))[0]
        assert said(alone) == said(own)


def said(end: Finished) -> tuple[str, str, int]:
    return end.reason, end.text, end.usage.completion_tokens


@pytest.mark.parametrize(("fails", "restored"), [(False, PREFILL_CHUNK), (True, 0)])
def test_a_prompt_that_ends_between_chunks_is_gone_on_from_where_its_state_is(
    fails: bool, restored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without snapshots, which would have what a slot lost.
    used, fresh, failing = listening(prefix_cache=0), listening(), Failing(monkeypatch)
    text = " ".join(str(5 + place % 241) for place in range(2 * PREFILL_CHUNK - 20))
    first = used.request(text, max_tokens=9)
    used.engine.submit(first)
    used.engine.step()
    if fails:
        failing.left = 2
        used.engine.step()
    used.engine.cancel(first.id)
    law = Sampling(temperature=1.0, top_k=20, seed=3)
    own, alone = (made.ask(f"{text} 7 8", max_tokens=12, sampling=law)[0] for made in (used, fresh))

    assert ("error" if fails else "cancelled") == used.finished(first.id).reason
    assert restored == own.usage.restored_tokens
    assert said(alone) == said(own)
