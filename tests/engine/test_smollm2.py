"""The default model through the product's own engine, in both dtypes of a CPU: widths, copies, the
answer about Paris."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import torch

from flarechat.engine.boot import boot_engine
from flarechat.engine.engine import Engine
from flarechat.engine.plan import LawShape, Plan, extent_for
from flarechat.engine.slot import Lanes
from flarechat.protocol import Boot, Event, Finished, Message, Request, Round, Sampling, Speculation
from tests.engine.tiny import PACKED_HALF, STORED_TILES

pytestmark = [pytest.mark.network, pytest.mark.slow]

SENTENCE = (
    "The old lighthouse keeper climbed the winding stairs every evening to light the great lamp, "
    "watching ships pass slowly through the narrow channel while gulls circled above the rocky "
    "shore and the cold wind carried the smell of salt and distant rain."
)
REPEAT = f"Repeat this exactly three times: {SENTENCE}"


@pytest.fixture(scope="module", params=[PACKED_HALF, STORED_TILES])
def engine(
    smollm2: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Engine:
    cache = tmp_path_factory.mktemp("cache")
    boot = Boot(model=str(smollm2), cache=str(cache), context=1024, dtype=request.param)
    return boot_engine(boot, lambda event: None)


def ask(engine: Engine, text: str, **fields: object) -> tuple[Finished, list[Round]]:
    events: list[Event] = []
    engine.emit = events.append
    messages = (Message(role="user", content=text),)
    engine.submit(Request(id=f"r{id(events)}", messages=messages, **fields))  # type: ignore[arg-type]
    while engine.busy:
        engine.step()
    (finished,) = [e for e in events if isinstance(e, Finished)]
    return finished, [e for e in events if isinstance(e, Round)]


def test_it_knows_the_capital_of_france(engine: Engine) -> None:
    finished, _ = ask(
        engine, "What is the capital of France?", sampling=Sampling(temperature=0), max_tokens=32
    )

    assert "Paris" in finished.text
    assert "stop" == finished.reason


def test_copies_say_the_same_in_fewer_rounds(engine: Engine) -> None:
    greedy = Sampling(temperature=0)
    fields = {"sampling": greedy, "max_tokens": 60}
    off, on = Speculation(history_drafts=False, mtp=False), Speculation(mtp=False)
    plain, _ = ask(engine, REPEAT, speculation=off, **fields)
    copied, rounds = ask(engine, REPEAT, speculation=on, **fields)

    assert SENTENCE in plain.text
    assert plain.text == copied.text
    assert 2 * len(rounds) < plain.speculation.rounds
    assert copied.speculation.by_source["context"].accepted > 20


@pytest.mark.parametrize("start", [60, 505])
def test_a_wide_pass_equals_narrow_ones_bit_for_bit(engine: Engine, start: int) -> None:
    tokenizer, pool = engine.language.tokenizer, engine.pool
    text = tokenizer.encode(f"{SENTENCE} " * 16)[: start + 24]
    rows = pool.context + 8

    pool.open(0, text, sampling=Sampling(), seed=0, match=True, budget=1, eos=())
    pool.start(0)
    lanes, prefill = Lanes(pool, (0,)), Plan(start - 1, extent_for(start, rows))
    with torch.inference_mode():
        engine.executor.prefill(lanes, torch.tensor([text[:start]]), prefill)

    def logits(width: int) -> torch.Tensor:
        pool.consumed[0], out = start, []
        with torch.inference_mode():
            for at in range(start, start + 24, width):
                piece = torch.tensor([text[at : at + width]])
                plan = Plan(piece.shape[1] - 1, extent_for(at + width, rows), LawShape(1))
                out.append(engine.executor.target.verify(lanes, piece, plan)[1][0].clone())  # type: ignore[attr-defined]
                pool.consumed += piece.shape[1]
        return torch.cat(out)

    alone = logits(1)
    for width in range(2, 9):
        assert torch.equal(alone, logits(width)), width
    pool.release(0)
    engine.residents.forget(0)


def test_match_gives_the_same_text_for_widths_one_to_eight(engine: Engine) -> None:
    fields = {
        "sampling": Sampling(temperature=0.7, top_k=40, top_p=0.95, seed=11),
        "max_tokens": 48,
    }
    prompt = f"Write this again and go on with the story: {SENTENCE}"
    said = []
    for draft_tokens in range(8):
        how = Speculation(draft_tokens=draft_tokens, adaptive=False)
        finished, rounds = ask(engine, prompt, speculation=how, **fields)
        said.append((finished.text, tuple(chain.from_iterable(r.tokens for r in rounds))))

    assert 1 == len(set(said))
