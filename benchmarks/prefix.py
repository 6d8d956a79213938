"""Time to the first token of a long prefix and a short tail: computed, and restored.

    python benchmarks/prefix.py [--model PATH] [--device cpu|cuda] [--repeat N] [--out CSV]
                                [--parts] [--disk]

Each repeat asks a prefix of its own with one tail, which computes it, and then with another tail,
after every slot has been made to forget what it held, so that the prefix comes from a snapshot.
`again` asks that second prompt once more, whose first pass is recalled. With `--disk` another
engine then starts on the same cache folder and is asked each prefix with a third tail; its files
are fresh, so that the system most likely has them in memory. Printed are milliseconds from the
request to the event of its first round, medians and extremes, and their ratio to computing it;
prompts are given as numbers, and encoding them is not measured.

`--parts` repeats all of it with clocks in the engine, and prints microseconds of the host's time by
part. Of a GPU they are the time of asking it, but for what waits for it: `wait` and `collect`.
"""

from __future__ import annotations

import argparse
import csv
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from host_overhead import Clock

from flarechat.engine.boot import boot_engine
from flarechat.engine.engine import Engine
from flarechat.models import store
from flarechat.protocol import Boot, Event, Finished, Message, Request, Round, Sampling, Started

TAIL, SPOKEN = 11, 4
LAW = Sampling(temperature=0)
LOAD, REST = "load", "(rest)"
DISK_MIB = 1 << 16


@dataclass
class Measured:
    """Milliseconds of each way to the first token, those of loading from disk alone, and
    microseconds by way and part."""

    times: dict[str, list[float]] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)
    parts: dict[str, dict[str, list[float]]] = field(default_factory=dict)


class Asked:
    """An engine that is asked in token numbers."""

    def __init__(self, boot: Boot, *, parts: bool) -> None:
        self.events: list[Event] = []
        self.engine: Engine = boot_engine(boot, self._hear)
        gc.freeze()  # as the engine process does
        self._prompts: dict[str, list[int]] = {}
        encode = lambda messages, thinking=True: self._prompts[messages[0].content]  # noqa: E731
        self.engine.language = replace(self.engine.language, encode_chat=encode, eos=())
        self.clock = Clock(time.perf_counter)
        if parts:
            time_parts(self.engine, self.clock)
        if (disk := self.engine.bookings.keeper.tree.store) is not None:
            self.clock.wrap(disk, "load", LOAD)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Round) and not self.told:
            self.spent = time.perf_counter() - self.began
            self.told = dict(self.clock.spent)
            self.told[REST] = self.spent - sum(self.told.values())

    def first_token(self, tokens: Sequence[int]) -> tuple[float, Started]:
        """Milliseconds to the first round of an answer, and how it began."""
        self.events.clear()
        self.told: dict[str, float] = {}
        self._prompts = {"prompt": list(tokens)}
        message = Message(role="user", content="prompt")
        request = Request(id="r", messages=(message,), sampling=LAW, max_tokens=SPOKEN)
        self.clock.spent.clear()
        self.began = time.perf_counter()
        self.engine.submit(request)
        while self.engine.busy:
            self.engine.step()
        (started,) = [event for event in self.events if isinstance(event, Started)]
        (finished,) = [event for event in self.events if isinstance(event, Finished)]
        assert finished.error is None, finished.error
        return 1e3 * self.spent, started

    def forget(self) -> None:
        """No slot holds anything any more."""
        for slot in range(self.engine.pool.slots):
            self.engine.residents.forget(slot)


def time_parts(engine: Engine, clock: Clock) -> None:
    """Wrap what comes before a first token."""
    bookings, player, drafter = engine.bookings, engine.player, engine.drafter
    owners: list[tuple[Any, dict[str, str]]] = [
        (engine.residents, {"claim": "slots", "source": "slots"}),
        (bookings.keeper, {"search": "search", "restore": "restore"}),
        (engine.pool, {"open": "open slot"}),
        (getattr(drafter, "copies", drafter), {"open": "copies"}),
        (getattr(drafter, "learned", object()), {"open": "head"}),
        (engine.executor, {"prefill": "prefill", "wait": "wait", "play": "play", "recall": "play"}),
        (bookings, {"take": "take", "recall": "recall"}),
        (player, {"_stage": "stage", "_choose": "choose", "collect": "collect"}),
    ]  # fmt: skip
    for owner, names in owners:
        for name, part in names.items():
            if hasattr(owner, name):
                clock.wrap(owner, name, part)


class Texts:
    """The prefix and the tails of each repeat, in random tokens."""

    def __init__(self, turn: int, prefix: int, vocabulary: int) -> None:
        draw = random.Random(turn)
        lengths = prefix, TAIL, TAIL, TAIL
        words, *tails = ([draw.randrange(100, vocabulary) for _ in range(n)] for n in lengths)
        self.one, self.other, self.third = ([*words, *tail] for tail in tails)


def measured(boot: Boot, prefix: int, repeat: int, *, parts: bool, disk: bool) -> Measured:
    """Every way, `repeat` times; the first one of all is not counted."""
    found, asked = Measured(), Asked(boot, parts=parts)
    vocabulary = asked.engine.language.tokenizer.vocabulary
    texts = [Texts(turn, prefix, vocabulary) for turn in range(repeat + 1)]
    for turn, text in enumerate(texts):
        note(found, turn, "computed", asked, text.one, 0, "")
        for way, rows in (("restored", prefix), ("again", prefix + TAIL - 1)):
            asked.forget()
            note(found, turn, way, asked, text.other, rows, "memory")
    if disk:
        assert asked.engine.close(600), "the snapshots were not written in ten minutes"
        del asked
        other = Asked(boot, parts=parts)
        for turn, text in enumerate(texts):
            other.forget()
            note(found, turn, "disk", other, text.third, prefix, "disk")
        other.engine.close(600)
    return found


def note(
    found: Measured, turn: int, way: str, asked: Asked, tokens: list[int], rows: int, place: str
) -> None:
    """Ask in one way, which is to find `rows` tokens in a `place`."""
    ms, started = asked.first_token(tokens)
    # Drawn texts may begin with the same tokens, few at most.
    assert 0 <= started.restored_tokens - rows < TAIL, (way, started)
    assert not rows or started.restored_from == place, (way, started)
    if not turn:
        return
    found.times.setdefault(way, []).append(ms)
    if place == "disk":
        found.loads.append(1e3 * asked.told[LOAD])
    for part, seconds in asked.told.items():
        found.parts.setdefault(way, {}).setdefault(part, []).append(1e6 * seconds)


def print_parts(found: Measured) -> None:
    """A row a way: microseconds by part, medians, the largest first."""
    for way, spent in found.parts.items():
        medians = {part: statistics.median(each) for part, each in spent.items()}
        ordered = sorted(medians.items(), key=lambda item: -item[1])
        told = "  ".join(f"{part} {us:.0f}" for part, us in ordered)
        print(f"{way:9} {told}")


def main() -> None:
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prefix", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--disk", action="store_true", help="a new engine finds it on disk, too")
    parser.add_argument("--parts", action="store_true", help="then print the host's time by part")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    path = Path(args.model) if Path(args.model).exists() else store.resolve(args.model)
    kept = {"prefix_cache_disk": DISK_MIB} if args.disk else {}

    def run(*, parts: bool) -> Measured:
        with tempfile.TemporaryDirectory() as cache:
            boot = Boot(model=str(path), cache=cache, device=args.device, dtype=args.dtype, **kept)
            return measured(boot, args.prefix, args.repeat, parts=parts, disk=args.disk)

    found = run(parts=False)
    computed, rows = statistics.median(found.times["computed"]), []
    for way, each in found.times.items():
        median = statistics.median(each)
        row = [args.device, args.prefix, TAIL, way, len(each)]
        rows.append([*row, *(round(ms, 2) for ms in (median, min(each), max(each))),
                     round(computed / median, 1)])  # fmt: skip
        print(f"{way:9} {median:9.2f} ms ({min(each):.2f} to {max(each):.2f}), "
              f"{computed / median:.1f}x")  # fmt: skip
    if found.loads:
        print(f"of disk, {statistics.median(found.loads):.2f} ms are loading")
    if args.parts:
        print_parts(run(parts=True))
    if args.out:
        with args.out.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["device", "prefix", "tail", "way", "samples", "first_token_ms", "low",
                            "high", "ratio"])  # fmt: skip
            table.writerows(rows)


if __name__ == "__main__":
    main()
