"""Time to the first token of a long prefix and a short tail: computed, and restored.

    python benchmarks/prefix.py [--model PATH] [--device cpu|cuda] [--repeat N] [--out CSV]

Each repeat asks a prefix of its own with one tail, which computes it, and then with another tail,
after every slot has been made to forget what it held, so that the prefix comes from a snapshot.
`again` asks that second prompt once more, whose first pass is recalled. Printed are milliseconds
from the request to the first token, medians and extremes, and their ratio to computing it.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flarechat.engine.boot import boot_engine
from flarechat.engine.engine import Engine
from flarechat.models import store
from flarechat.protocol import Boot, Event, Finished, Message, Request, Round, Sampling, Started

TAIL, SPOKEN = 11, 4
WAYS = ("computed", "restored", "again")
LAW = Sampling(temperature=0)


class Asked:
    """An engine that is asked in token numbers."""

    def __init__(self, boot: Boot) -> None:
        self.events: list[Event] = []
        self.engine: Engine = boot_engine(boot, self.events.append)
        encode = lambda messages, thinking=True: [int(t) for t in messages[0].content.split()]  # noqa: E731
        self.engine.language = replace(self.engine.language, encode_chat=encode, eos=())

    def first_token(self, tokens: Sequence[int]) -> tuple[float, Started]:
        """Milliseconds to the first round of an answer, and how it began."""
        self.events.clear()
        message = Message(role="user", content=" ".join(map(str, tokens)))
        request = Request(id="r", messages=(message,), sampling=LAW, max_tokens=SPOKEN)
        began = time.perf_counter()
        self.engine.submit(request)
        while not any(isinstance(event, Round) for event in self.events):
            self.engine.step()
        spent = 1e3 * (time.perf_counter() - began)
        while self.engine.busy:
            self.engine.step()
        (started,) = [event for event in self.events if isinstance(event, Started)]
        (finished,) = [event for event in self.events if isinstance(event, Finished)]
        assert finished.error is None, finished.error
        return spent, started

    def forget(self) -> None:
        """No slot holds anything any more."""
        for slot in range(self.engine.pool.slots):
            self.engine.residents.forget(slot)


def measured(asked: Asked, prefix: int, repeat: int) -> dict[str, list[float]]:
    """Milliseconds of every way, `repeat` times; the first one of all is not counted."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    vocabulary = asked.engine.language.tokenizer.vocabulary
    for turn in range(repeat + 1):
        draw = random.Random(turn)
        lengths = prefix, TAIL, TAIL
        words, one, other = ([draw.randrange(100, vocabulary) for _ in range(n)] for n in lengths)
        found = {"computed": asked.first_token([*words, *one])}
        for way in WAYS[1:]:
            asked.forget()
            found[way] = asked.first_token([*words, *other])
        expected = {"computed": 0, "restored": prefix, "again": prefix + TAIL - 1}
        for way, (ms, started) in found.items():
            # Drawn texts may begin with the same tokens, few at most.
            assert 0 <= started.restored_tokens - expected[way] < TAIL, (way, started)
            assert expected[way] == 0 or started.restored_from == "memory", (way, started)
            if turn:
                times[way].append(ms)
    return times


def main() -> None:
    """Measure, print, and write the table where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prefix", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    path = Path(args.model) if Path(args.model).exists() else store.resolve(args.model)
    with tempfile.TemporaryDirectory() as cache:
        boot = Boot(model=str(path), cache=cache, device=args.device, dtype=args.dtype)
        times = measured(Asked(boot), args.prefix, args.repeat)
    computed, rows = statistics.median(times["computed"]), []
    for way, each in times.items():
        median = statistics.median(each)
        row = [args.device, args.prefix, TAIL, way, len(each)]
        rows.append([*row, *(round(ms, 2) for ms in (median, min(each), max(each))),
                     round(computed / median, 1)])  # fmt: skip
        print(f"{way:9} {median:9.2f} ms ({min(each):.2f} to {max(each):.2f}), "
              f"{computed / median:.1f}x")  # fmt: skip
    if args.out:
        with args.out.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["device", "prefix", "tail", "way", "samples", "first_token_ms", "low",
                            "high", "ratio"])  # fmt: skip
            table.writerows(rows)


if __name__ == "__main__":
    main()
