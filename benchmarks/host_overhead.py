"""What a round costs the host: everything about it but the model.

    python benchmarks/host_overhead.py [--engine] [--model PATH] [--rounds N] [--out CSV]

An executor that computes nothing hands out frames with tokens of an ordinary text, two rounds
under way as on a GPU; the engine stages, chooses, launches, collects, decodes, and writes its
events as JSON lines to a null device, as the engine process does. With `--engine` the model itself
answers on the CPU, with its head; what these compute is (model), the draws of drafts included where
one call of C does all, and the page's steps around that are page. Printed are microseconds of the
thread's own time a round, medians of `--repeat` answers: all of it, and by part (with the clocks'
own cost in them); `host` are all but (model).
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flarechat import paths
from flarechat.engine.accept import EXHAUSTED, RUNNING
from flarechat.engine.answer import Emit
from flarechat.engine.boot import boot_engine, language_of
from flarechat.engine.controller import Controller
from flarechat.engine.drafters import blend, make_drafter
from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.engine import Engine, Language
from flarechat.engine.frame import HEADER, Frame
from flarechat.engine.keeper import Keeper
from flarechat.engine.plan import Plan
from flarechat.engine.recipes import SUPPORTED
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.engine.state.hidden import HiddenState
from flarechat.engine.state.kv import KVState
from flarechat.engine.weights import load_checkpoint
from flarechat.models import store
from flarechat.models.catalog import SMOLLM2
from flarechat.protocol import Boot, Event, Message, Request, Speculation, encode
from flarechat.vault.identity import Identity

CPU = torch.device("cpu")
CONTEXT = 2048
MODEL = "(model)"
TEXT = (
    "The lighthouse keeper climbed the narrow stairs every evening, counting them under her breath "
    "although she had known the number for thirty years. Below her the harbour filled with boats, "
    "and the wind brought the smell of tar, salt and bread. She lit the lamp, wrote the hour into "
    "the book, and looked for the one ship that was still missing. Nobody had asked her to; it was "
    "simply what one did, as one closes a gate or turns the loaf so that it does not lie upside "
    "down. At midnight the rain began. "
)


class BareHead:
    """A draft head without arithmetic: the sizes that its drafter asks for."""

    features, vocabulary = 4, None

    def cache(self, slots: int, context: int) -> tuple[KVState, HiddenState]:
        kv = KVState(1, slots, context, 1, 4, torch.float32, CPU)
        return kv, HiddenState(slots, context, 4, torch.float32, CPU)


class Prepared:
    """Hands out frames: of K drafts two are kept, and the tokens are those of a text."""

    name, depth = "prepared", 2

    def __init__(self, tokens: list[int], budget: int) -> None:
        self.tokens, self.budget, self.at, self.done = tokens, budget, 0, 0

    def play(self, lanes: Lanes, plan: Plan) -> Frame:
        left = self.budget - self.done
        emitted = min(min(plan.draft_tokens, 2) + 1, left)
        self.done += emitted
        finish = EXHAUSTED if self.done == self.budget else RUNNING
        row = [plan.draft_tokens, min(plan.draft_tokens, 2), emitted, finish, 0, self.done]
        start, self.at = self.at, (self.at + emitted) % (len(self.tokens) - 8)
        row += self.tokens[start : start + plan.width]
        record = torch.tensor([row], dtype=torch.int64)
        assert record.shape[1] == HEADER + plan.width
        return Frame(record)

    def prefill(self, *_: object) -> None:
        """Nothing."""

    copy = prefill

    def heard(self, lanes: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(lanes, 1), torch.zeros(lanes, 1)

    def recall(self, *_: object) -> Frame:
        raise AssertionError("no snapshots are kept")

    def wait(self) -> None:
        """Nothing is under way."""


class Clock:
    """Seconds by `now` spent in wrapped calls, by name; what a part calls is taken off it."""

    def __init__(self, now: Callable[[], float] = time.thread_time) -> None:
        self.now = now
        self.spent: dict[str, float] = {}
        self._inner: list[float] = []

    def wrap(self, owner: Any, name: str, part: str) -> None:
        call = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(part):
                return call(*args, **kwargs)

        setattr(owner, name, timed)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = self.now()
        self._inner.append(0.0)
        try:
            yield
        finally:
            whole = self.now() - began
            self.spent[name] = self.spent.get(name, 0.0) + whole - self._inner.pop()
            if self._inner:
                self._inner[-1] += whole


def bare_engine(language: Language, tokens: list[int], budget: int, emit: Emit) -> Engine:
    """An engine of the prepared executor."""
    pool = SlotPool(1, CONTEXT, language.tokenizer.vocabulary, CPU)
    learned = MtpDrafter(BareHead(), 1, CONTEXT, CPU)  # type: ignore[arg-type]
    drafter = blend(make_drafter("copies", 1, CPU), learned)
    keeper = Keeper(Identity(recipe="", fingerprint="", dtype="", device=""), 0, (), drafter)
    executor = Prepared(tokens, budget)
    return Engine(drafter, executor, pool, language, Controller(), emit, keeper)


def whole_engine(model: Path, emit: Emit) -> Engine:
    """An engine that computes."""
    cache = str(paths.cache_dir())
    boot = Boot(model=str(model), cache=cache, device="cpu", prefix_cache=0)
    engine = boot_engine(boot, emit)
    gc.freeze()
    return engine


def maker(model: Path, *, whole: bool) -> Callable[[int, Emit], Engine]:
    """What makes an engine for a budget of tokens."""
    if whole:
        return lambda budget, emit: whole_engine(model, emit)
    checkpoint = load_checkpoint(model, model.parent, lambda *_: None, supported=SUPPORTED)
    language = language_of(checkpoint)
    return partial(bare_engine, language, language.tokenizer.encode(TEXT * 3))


def time_parts(engine: Engine, clock: Clock) -> None:
    """Wrap what a round of the engine consists of."""
    parts = {"_stage": "stage", "_choose": "choose", "due": "due", "launch": "launch"}
    for name, part in (parts | {"_learn": "record", "collect": "collect"}).items():
        clock.wrap(engine.player, name, part)
    clock.wrap(engine, "_settle", "take")
    clock.wrap(engine, "emit", "emit")
    executor: Any = engine.executor
    clock.wrap(executor, "play", "(frame)" if isinstance(executor, Prepared) else "page")
    if isinstance(executor, Prepared):
        return
    clock.wrap(executor.target, "verify", MODEL)
    learned: Any = getattr(engine.drafter, "learned", None)
    for name in ("draft", "absorb", "condense", "forward", "write", "logits"):
        if learned is not None and hasattr(learned.head, name):
            clock.wrap(learned.head, name, MODEL)


def answer(
    make: Callable[[int, Emit], Engine], how: Speculation, rounds: int, clock: Clock | None
) -> tuple[float, int]:
    """Microseconds a round of one answer, and its rounds; the first ones are not counted."""
    per_round = 1 if how.draft_tokens == 0 else 3
    budget = min(rounds * per_round, CONTEXT - 64)
    played = 0
    with open(os.devnull, "w", encoding="utf-8") as null:

        def emit(event: Event) -> None:
            nonlocal played
            played += type(event).__name__ == "Round"
            null.write(encode(event) + "\n")
            null.flush()

        engine = make(budget, emit)
        if clock is not None:
            time_parts(engine, clock)
        message = Message(role="user", content="Tell me a long story about the harbour.")
        sampling = replace(SMOLLM2.recommended, seed=1)
        engine.submit(
            Request(
                id="r", messages=(message,), sampling=sampling, speculation=how, max_tokens=budget
            )
        )
        while engine.busy and played < 8:
            engine.step()
        if clock is not None:
            clock.spent.clear()
        first, began = played, time.thread_time()
        while engine.busy:
            engine.step()
        spent = time.thread_time() - began
    counted = max(played - first, 1)
    return 1e6 * spent / counted, counted


ARMS = {
    "off": Speculation(draft_tokens=0),
    "fixed 3, mtp": Speculation(draft_tokens=3, adaptive=False, history_drafts=False),
    "adaptive, mtp": Speculation(history_drafts=False),
    "adaptive, mtp and copies": Speculation(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", action="store_true", help="let the model answer")
    parser.add_argument("--model", help="GGUF file or folder; the default model if left out")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--out", help="CSV file to write")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    path = Path(asked.model) if asked.model else store.resolve("smollm2")
    make = maker(path, whole=asked.engine)
    lines = ["arm,part,us_per_round"]
    for arm, how in ARMS.items():
        gc.collect()
        totals = [answer(make, how, asked.rounds, None)[0] for _ in range(asked.repeat)]
        parts: dict[str, list[float]] = {}
        for _ in range(asked.repeat):
            clock = Clock()
            us, rounds = answer(make, how, asked.rounds, clock)
            own = us - 1e6 * clock.spent.get(MODEL, 0.0) / rounds
            parts.setdefault("host", []).append(own)
            for name, seconds in clock.spent.items():
                parts.setdefault(name, []).append(1e6 * seconds / rounds)
        found = {"all": statistics.median(totals)}
        found |= {name: statistics.median(values) for name, values in parts.items()}
        print(f"{arm:26} " + "  ".join(f"{name} {us:.0f}" for name, us in found.items()))
        lines += [f'"{arm}",{name},{us:.1f}' for name, us in found.items()]
    if asked.out:
        Path(asked.out).write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
