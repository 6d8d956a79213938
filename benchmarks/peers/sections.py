"""The other sections: first tokens, passes by width, a busy core, starting, memory.

Each plays its peers in alternating order and writes a row a sample.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.h200.record import Box, Run
from benchmarks.h200.texts import QUESTIONS
from benchmarks.peers.crew import (
    ADAPTIVE,
    FLARECHAT,
    HISTORY,
    LLAMA,
    OFF,
    PASSES,
    PLAIN,
    SERVER,
    Crew,
    turns,
)
from benchmarks.peers.peer import resident
from benchmarks.peers.prompts import LAWS, Sizes, ask_of, of_length
from flarechat.engine.engine import Language
from flarechat.protocol import MAX_DRAFT_TOKENS

PROMPT_TOKENS, LONG_TOKENS, MEMORY_CONTEXT = 512, 1900, 2048
WIDTHS = tuple(range(1, MAX_DRAFT_TOKENS + 2))
BUSY_TOKENS = 48  # an engine that collapses says one or two of them a second
SPIN = "while True: pass"


def first_token(run: Run, crew: Crew, language: Language, sizes: Sizes, box: Box) -> dict[str, Any]:
    """Time to the first token of a prompt of 512 tokens that no cache has anything of."""
    names = crew.known((OFF, ADAPTIVE, LLAMA, SERVER, PLAIN))
    for name in names:
        crew.get(name).ask(of_length(language, PROMPT_TOKENS, 1))
    box.begin()
    for repeat in range(sizes.prompt_repeats):
        ask = of_length(language, PROMPT_TOKENS, repeat + 2)
        for name in turns(names, repeat):
            if box.over:
                break
            told, noise = crew.get(name).ask(ask)
            run.table("prompt").add(
                engine=name, repeat=repeat, prompt_tokens=len(ask.ids), restored=told.restored,
                first_ms=told.first_ms, load=noise.load, involuntary=noise.involuntary,
            )  # fmt: skip
    crew.end((PLAIN,))
    return {}


def passes(run: Run, crew: Crew, language: Language, sizes: Sizes, box: Box) -> dict[str, Any]:
    """The model's pass by width at some contexts, logits for all rows."""
    crew.end(FLARECHAT)
    names = crew.known((PASSES, LLAMA))
    for name in names:
        crew.get(name)
    box.begin()
    for context in sizes.pass_contexts:
        ids = of_length(language, context, 1).ids[:context]
        for name in names:
            crew.get(name).call("passes", {"ids": ids, "widths": WIDTHS, "repeats": 2})
        for block in range(sizes.pass_blocks):
            for name in turns(names, block):
                if box.over:
                    break
                body = {"ids": ids, "widths": WIDTHS, "repeats": sizes.pass_repeats}
                for width, spent in crew.get(name).call("passes", body)["ms"].items():
                    run.table("passes").add(
                        engine=name, context=context, width=int(width), block=block,
                        samples=len(spent), median_ms=median(spent), least_ms=min(spent),
                    )  # fmt: skip
    crew.end((PASSES,))
    return {}


@contextmanager
def spinning() -> Iterator[subprocess.Popen[bytes]]:
    """One core kept busy by another process."""
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def busy(run: Run, crew: Crew, language: Language, sizes: Sizes, box: Box) -> dict[str, Any]:
    """Decoding while one other core is busy, and quiet in turns with it, minute by minute."""
    names = crew.known((OFF, HISTORY, LLAMA, SERVER))
    for name in names:
        crew.get(name).ask(ask_of(language, QUESTIONS[-1], 32, LAWS["greedy"]))
    box.begin()
    for repeat in range(sizes.busy_repeats):
        for core in turns(("quiet", "busy"), repeat):
            with spinning() if core == "busy" else nullcontext():
                for name in turns(names, repeat):
                    if box.over:
                        break
                    # Another question every time, as a known one would be copied.
                    ask = ask_of(
                        language, f"{QUESTIONS[repeat % 5]} ({core})", BUSY_TOKENS, LAWS["sampled"]
                    )
                    told, noise = crew.get(name).ask(ask)
                    run.table("busy").add(
                        engine=name, core=core, repeat=repeat, tokens=len(told.tokens),
                        rate=told.rate, load=noise.load, involuntary=noise.involuntary,
                    )  # fmt: skip
    return {}


def start(run: Run, crew: Crew, language: Language, sizes: Sizes, box: Box) -> dict[str, Any]:
    """From a process's start until it takes requests, the model's files read before; then a first
    short answer."""
    crew.close()
    names = crew.known((HISTORY, LLAMA, SERVER, PLAIN))
    ask = ask_of(language, QUESTIONS[0], 8, LAWS["greedy"])
    for repeat in range(sizes.start_repeats):
        for name in turns(names, repeat):
            if box.over:
                break
            peer = crew.start(name)
            told, noise = peer.ask(ask)
            peer.close()
            run.table("start").add(
                engine=name, repeat=repeat, ready_ms=peer.ready_ms, first_ms=told.first_ms,
                load=noise.load,
            )  # fmt: skip
    return {}


def memory(run: Run, crew: Crew, language: Language, sizes: Sizes, box: Box) -> dict[str, Any]:
    """Resident bytes of an engine of 2,048 tokens: ready, and with a prompt of 1,900 answered."""
    crew.close()
    own = crew.sized(MEMORY_CONTEXT)
    for name in own.known((OFF, HISTORY, LLAMA, SERVER, PLAIN)):
        if box.over:
            break
        peer = own.start(name)
        before = resident(peer.pids)
        peer.ask(replace(of_length(language, LONG_TOKENS, 1), tokens=32))
        after = resident(peer.pids)
        peer.close()
        run.table("memory").add(
            engine=name, context=MEMORY_CONTEXT, ready_bytes=before["resident"],
            resident_bytes=after["resident"], anonymous_bytes=after["anonymous"],
            peak_bytes=after["peak"],
        )  # fmt: skip
    return {}
