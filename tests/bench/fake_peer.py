"""A peer that computes nothing: it answers with written tokens at a rate that its flags name.

It is started as the real ones are, so the lines, the clock's figures and the processes are real.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.peers.wire import Ask, Told, private_channel, serve


def main() -> None:
    """Serve until the input ends."""
    channel = private_channel()
    made = argparse.ArgumentParser("fake_peer")
    made.add_argument("--rate", type=float, default=100.0)
    made.add_argument("--differs-at", type=int, default=1000)
    made.add_argument("--fault", default="")
    asked = made.parse_args()
    if asked.fault == "dies":
        sys.exit(3)

    def answer(body: dict[str, Any]) -> Mapping[str, Any]:
        ask = Ask.of(body)
        if asked.fault == "fails":
            raise ValueError("no such law")
        print("a library's chatter")
        told = Told(
            tokens=[n if n < asked.differs_at else -n for n in range(ask.tokens)],
            first_ms=float(len(ask.ids)),
            first_tokens=1,
            decode_ms=1e3 * (ask.tokens - 1) / asked.rate,
            prompt=[0, *ask.ids] if asked.fault == "other tokens" else list(ask.ids),
        )
        return asdict(told)

    def passes(body: dict[str, Any]) -> Mapping[str, Any]:
        times = {str(w): [(4.0 + w) * 100 / asked.rate] * body["repeats"] for w in body["widths"]}
        return {"ms": times}

    facts = {"engine": "fake", "pids": [os.getpid()], "flash_attention": "on"}
    serve(facts, {"answer": answer, "passes": passes}, channel)


if __name__ == "__main__":
    main()
