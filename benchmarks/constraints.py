"""Answers under constraints: what drafting brings them, and whether all of them are valid.

    python -m benchmarks.constraints [--model PATH] [--device cpu|cuda] [--repeat N] [--out CSV]
                                     [--acceptance match|ratio]
    python -m benchmarks.constraints --valid N [--model PATH] [--device cpu|cuda]

The first answers JSON prompts, each under its schema, by the law that the model recommends but at
temperature 0.7: one token a pass (width one, under the same grammar), with grammar drafts alone,
and with copies, the MTP head, or both beside them. Every arm has an engine of its own, so that no
answer is copied from another arm's; every prompt is answered by all arms one after another, in an
order that turns round. By match they say the very same text, which is checked; by ratio, the
default where no seed is given, each says its own. Printed are tokens a target pass, tokens a second
while decoding (medians over answers), and medians and quartiles of each answer's ratio to width
one's of the same prompt and seed, while decoding and of the whole time from request to end.

The second asks over the constraints of the tests, at several temperatures, by ratio and by match,
four at a time with everything drafting, until N answers have ended whole, and has the jsonschema
package and Python's `re` judge these. An answer that ran into its limit must be told as such.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flarechat.engine.boot import boot_engine
from flarechat.models import store
from flarechat.protocol import (
    Boot,
    Constraint,
    Event,
    Finished,
    Message,
    Ready,
    Request,
    Round,
    Sampling,
    Speculation,
)

TEMPERATURE, LONGEST, CONTEXT = 0.7, 256, 1024
WIDTH_ONE = "width one"
ARMS: dict[str, dict[str, Any]] = {
    WIDTH_ONE: {"draft_tokens": 0},
    "grammar": {"history_drafts": False, "mtp": False},
    "grammar + history": {"mtp": False},
    "grammar + mtp": {"history_drafts": False},
    "all": {},
}


def text(most: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


def whole(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def record(**properties: Any) -> dict[str, Any]:
    """An object of exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties),
            "additionalProperties": False}  # fmt: skip


def some(items: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


PROMPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "person": (
        "Extract the person as JSON: Maria Keller, 34 years old, is an engineer from Hamburg. "
        "Her address is maria.keller@example.com.",
        record(name=text(40), age=whole(0, 120), occupation=text(40), city=text(40),
               email={"type": "string", "format": "email"}),
    ),
    "order": (
        "Write this order as JSON: two blue cotton shirts at 19.50 each and one pair of black "
        "shoes at 75, to be sent to Paul Jones, 12 Mill Lane, York.",
        record(customer=record(name=text(40), street=text(40), city=text(30)),
               items=some(record(product=text(40), quantity=whole(1, 99), price={
                   "type": "number", "minimum": 0, "maximum": 1000}), 2, 3),
               paid={"type": "boolean"}),
    ),
    "recipe": (
        "Give me a recipe for pancakes as JSON.",
        record(title=text(50), servings=whole(1, 12), minutes=whole(5, 120),
               ingredients=some(record(name=text(30), amount=text(20)), 3, 5),
               steps=some(text(100), 2, 4)),
    ),
    "classification": (
        "Classify this review as JSON: The battery lasts all day, but the screen is too dark and "
        "the case broke after a week.",
        record(sentiment={"enum": ["positive", "negative", "mixed"]}, stars=whole(1, 5),
               topics=some({"enum": ["battery", "screen", "case", "price", "delivery"]}, 1, 4),
               would_recommend={"type": "boolean"}, summary=text(120)),
    ),
    "calendar": (
        "Plan a day in Rome as JSON with a visit for each part of the day.",
        record(city=text(30), date={"type": "string", "format": "date"},
               visits=some(record(part_of_day={"enum": ["morning", "afternoon", "evening"]},
                                  place=text(40), duration_minutes=whole(15, 240),
                                  description=text(100)), 3, 3)),
    ),
    "configuration": (
        "Write a configuration for a web server as JSON.",
        record(server=record(host=text(30), port=whole(1, 65535), workers=whole(1, 64)),
               logging=record(level={"enum": ["debug", "info", "warning", "error"]},
                              file=text(40), rotate={"type": "boolean"}),
               limits=record(max_connections=whole(1, 10000), timeout_seconds=whole(1, 600))),
    ),
}  # fmt: skip


class Asked:
    """An engine that was asked, and what it said; `play` answers all that wait."""

    def __init__(self, boot: Boot) -> None:
        self.events: list[Event] = []
        self.engine = boot_engine(boot, self.events.append)
        gc.freeze()  # as the engine process does; `measured` undoes it
        (ready,) = [event for event in self.events if isinstance(event, Ready)]
        self.recommended = ready.model.recommended

    def play(self, *requests: Request) -> float:
        """Answer these; seconds from asking to the last end."""
        since = time.perf_counter()
        for request in requests:
            self.engine.submit(request)
        while self.engine.busy:
            self.engine.step()
        return time.perf_counter() - since

    def said(self, request: str) -> tuple[list[Round], Finished]:
        own = [event for event in self.events if getattr(event, "request", "") == request]
        (finished,) = [event for event in own if isinstance(event, Finished)]
        return [event for event in own if isinstance(event, Round)], finished


@dataclass(frozen=True)
class Said:
    """One answer of an arm: its counts, its text, and its time in seconds."""

    tokens: int
    passes: int
    forced: int
    accepted: int
    redrawn: int
    text: str
    decoding: float
    whole: float


class Arm:
    """An arm with an engine of its own; its controller's state goes from answer to answer."""

    def __init__(self, boot: Boot, arm: str, acceptance: str) -> None:
        self.asked, self.state = Asked(boot), None
        self.speculation = Speculation(**ARMS[arm], acceptance=acceptance)
        self.answer("Describe a cat as JSON.", record(name=text(20), colour=text(20)), 0)

    def answer(self, prompt: str, schema: dict[str, Any], seed: int) -> Said:
        asked = self.asked
        request = Request(
            id=f"r{len(asked.events)}", messages=(Message(role="user", content=prompt),),
            sampling=replace(asked.recommended, temperature=TEMPERATURE, seed=seed),
            speculation=self.speculation, max_tokens=LONGEST, controller=self.state, private=True,
            constraint=Constraint(kind="json-schema", text=json.dumps(schema)),
        )  # fmt: skip
        seconds = asked.play(request)
        rounds, finished = asked.said(request.id)
        result, self.state = finished.constraint, finished.controller
        assert finished.error is None and result is not None, finished.error
        return Said(
            tokens=finished.usage.completion_tokens, passes=len(rounds), forced=result.forced,
            accepted=sum(played.accepted for played in rounds), redrawn=result.redrawn,
            text=finished.text, decoding=finished.timings.decode_ms / 1e3, whole=seconds,
        )  # fmt: skip


Found = dict[str, list[Said]]


def measured(boot: Boot, repeats: int, acceptance: str) -> Found:
    """Every prompt by every arm, so many times, in an order that turns round from prompt to prompt;
    each repeat with fresh engines and seeds of its own."""
    found: Found = {arm: [] for arm in ARMS}
    for repeat in range(repeats):
        arms = {name: Arm(boot, name, acceptance) for name in ARMS}
        for number, (prompt, schema) in enumerate(PROMPTS.values()):
            seed = 1 + number + len(PROMPTS) * repeat
            for name in list(arms)[:: -1 if seed % 2 else 1]:
                found[name].append(arms[name].answer(prompt, schema, seed))
            texts = {said[-1].text for said in found.values()}
            assert acceptance != "match" or len(texts) == 1, "by match all arms say the same"
        while arms:
            arms.popitem()[1].asked.engine.close(60)
        gc.unfreeze()
        gc.collect()
        print(f"{acceptance}: repeat {repeat + 1} of {repeats}", flush=True)
    return found


def spread(values: Sequence[float], name: str) -> dict[str, float]:
    """The median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {f"{name}_ratio": round(middle, 3), f"{name}_low": round(low, 3),
            f"{name}_high": round(high, 3)}  # fmt: skip


def rows_of(found: Found, device: str, acceptance: str) -> list[dict[str, Any]]:
    """A row an arm: counts in all, the median of tokens a second over answers, and of each answer's
    ratio to width one's of the same prompt and seed."""
    rows = []
    for arm, answers in found.items():
        rates = {
            way: [said.tokens / getattr(said, way) for said in answers]
            for way in ("decoding", "whole")
        }
        ones = {
            way: [said.tokens / getattr(said, way) for said in found[WIDTH_ONE]] for way in rates
        }
        total = {name: sum(getattr(said, name) for said in answers)
                 for name in ("tokens", "passes", "forced", "accepted", "redrawn")}  # fmt: skip
        row: dict[str, Any] = {
            "device": device, "acceptance": acceptance, "arm": arm, "answers": len(answers),
            **total, "tokens_per_pass": round(total["tokens"] / total["passes"], 3),
            "tokens_per_second": round(statistics.median(rates["decoding"]), 1),
        }  # fmt: skip
        for way in rates:
            pairs = zip(rates[way], ones[way], strict=True)
            row |= spread([own / one for own, one in pairs], way)
        rows.append(row)
    return rows


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        print(
            f"{row['acceptance']:6} {row['arm']:18} {row['tokens_per_pass']:6.2f} tokens a pass "
            f"{row['tokens_per_second']:8.1f} tok/s  decoding {row['decoding_ratio']:.2f}x "
            f"({row['decoding_low']:.2f} to {row['decoding_high']:.2f})  whole "
            f"{row['whole_ratio']:.2f}x ({row['whole_low']:.2f} to {row['whole_high']:.2f})"
        )


@dataclass
class Validity:
    """What became of answers: `counts` by ending, and the wrong ones with their case's name."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)

    @property
    def whole(self) -> int:
        """The answers that ended by themselves."""
        return self.counts["valid"] + self.counts["INVALID"]


def judged(boot: Boot, answers: int, cases: Sequence[Any], longest: int) -> Validity:
    """Answers over all cases (of tests.engine.grammar.schemas), until so many have ended whole, or
    twice as many were asked for; judged by others."""
    asked, found = Asked(boot), Validity()
    heats, rules = (0.7, 1.0, 1.5), ("ratio", "match")
    for first in range(0, 2 * answers, boot.lanes):
        if found.whole >= answers:
            break
        batch: dict[str, Any] = {}
        for number in range(first, first + boot.lanes):
            case = cases[number % len(cases)]
            turn = number // len(cases)
            batch[f"{number}"] = case, Request(
                id=f"{number}", messages=(Message(role="user", content=f"JSON: {case.name}."),),
                sampling=Sampling(temperature=heats[turn % 3], seed=number),
                speculation=Speculation(acceptance=rules[turn % 2]), max_tokens=longest,
                private=True, constraint=case.constraint,
            )  # fmt: skip
        asked.play(*(request for _, request in batch.values()))
        for name, (case, _) in batch.items():
            note(found, case, *asked.said(name))
        asked.events.clear()
    return found


def note(found: Validity, case: Any, rounds: Sequence[Round], finished: Finished) -> None:
    result = finished.constraint
    if finished.error is not None or result is None:
        ending = f"failed ({finished.error})"
    elif finished.reason in ("length", "context") and not result.satisfied:
        ending = "cut off, and told so"
    elif not result.satisfied:
        ending = f"unsatisfied by {finished.reason}"
    else:
        ending = "valid" if holds(case, finished.text) else "INVALID"
    found.counts[ending] += 1
    if ending == "INVALID":
        found.wrong.append((case.name, finished.text))
    for played_round in rounds:
        found.told["tokens"] += played_round.emitted
        found.told["passes"] += 1
        found.told["redrawn"] += played_round.redrawn
        found.told["removed"] += played_round.removed
        found.told.update(played_round.sources)


def holds(case: Any, answer: str) -> bool:
    """Whether another validator takes the answer; what is no JSON at all fails too."""
    try:
        return bool(case.holds(answer))
    except ValueError:
        return False


def print_valid(found: Validity, seconds: float) -> None:
    for ending, count in found.counts.most_common():
        print(f"{count:6} {ending}")
    for name, answer in found.wrong[:20]:
        print(f"       {name}: {answer!r}")
    told = ", ".join(f"{name} {count}" for name, count in found.told.most_common())
    print(f"{told}; {seconds:.0f} s")


def print_refused() -> bool:
    """Every schema that cannot be enforced whole must be refused by its keyword and its place."""
    from flarechat.constraining import checked
    from flarechat.errors import GrammarError
    from tests.engine.grammar.schemas import REFUSED

    texts = [(json.dumps(schema), word, place) for schema, word, place in REFUSED]
    texts.append(('{"properties":{"a":' * 3000 + "{}" + "}}" * 3000, "levels", ""))
    named = 0
    for schema, word, place in texts:
        try:
            checked(Constraint(kind="json-schema", text=schema))
        except GrammarError as error:
            named += word in error.message and place in error.message
    print(f"refused by keyword and place: {named} of {len(texts)}, one of them 3,000 levels deep")
    return named == len(texts)


def validate(boot: Boot, answers: int, longest: int) -> int:
    """Judge answers and refusals and print what came of them; 1 where one was wrong."""
    from tests.engine.grammar.schemas import CASES

    since = time.perf_counter()
    found = judged(boot, answers, CASES, longest)
    print_valid(found, time.perf_counter() - since)
    sound = set(+found.counts) <= {"valid", "cut off, and told so"}
    return 0 if print_refused() and sound else 1


def main() -> int:
    """Measure or judge, print, and write the table where asked; 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--acceptance", choices=("match", "ratio", "both"), default="both")
    parser.add_argument("--valid", type=int, metavar="N", help="judge N whole answers instead")
    parser.add_argument(
        "--longest", type=int, default=200, help="tokens of an answer that is judged"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model = args.model if Path(args.model).exists() else str(store.resolve(args.model))

    with tempfile.TemporaryDirectory() as cache:
        boot = Boot(model=model, cache=cache, device=args.device, dtype=args.dtype, context=CONTEXT,
                    lanes=4 if args.valid else 1, prefix_cache=0)  # fmt: skip
        if args.valid:
            return validate(boot, args.valid, args.longest)
        rows: list[dict[str, Any]] = []
        for acceptance in ("match", "ratio") if args.acceptance == "both" else (args.acceptance,):
            rows += rows_of(measured(boot, args.repeat, acceptance), args.device, acceptance)
    print_rows(rows)
    if args.out:
        with args.out.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
