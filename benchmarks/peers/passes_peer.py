"""flarechat's target pass alone, by width: the counterpart of llama.cpp's batches.

    python -m benchmarks.peers.passes_peer --model FILE --threads 2 --context 2048

The engine is booted as its own process boots it, in this one, and `verify` is called as a round
calls it: logits for all rows, rejected rows written over by the next pass.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.h200.desk import Desk, Setup
from benchmarks.peers.wire import private_channel, serve
from flarechat import paths
from flarechat.engine.plan import Plan, extent_for
from flarechat.engine.slot import SCRATCH_ROWS, Lanes


class PassesPeer:
    """An engine whose one slot stands behind a prompt."""

    def __init__(self, model: str, threads: int, context: int, dtype: str) -> None:
        boot = (("threads", threads), ("context", context))
        cache = str(paths.cache_dir())
        setup = Setup(model=model, cache=cache, device="cpu", dtype=dtype, boot=boot)
        self.desk, self.rows = Desk(setup, mtp=False), context + SCRATCH_ROWS

    def facts(self) -> dict[str, Any]:
        """What it is, for the record."""
        return {
            "engine": "flarechat",
            "dtype": self.desk.ready.model.dtype,
            "pids": [os.getpid()],
        }

    @torch.inference_mode()
    def passes(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Milliseconds of passes over W tokens behind `ids`, logits for all rows, by width; widths
        take turns."""
        ids = torch.tensor([body["ids"]])
        engine = self.desk.engine
        executor: Any = engine.executor
        engine.pool.start(0)
        engine.pool.consumed.zero_()
        lanes, whole = Lanes(engine.pool, (0,)), self._plan(0, ids.shape[1])
        executor.prefill(lanes, ids, whole)
        spent: dict[int, list[float]] = {width: [] for width in body["widths"]}
        for _ in range(body["repeats"]):
            for width, times in spent.items():
                inputs, plan = ids[:, :width], self._plan(ids.shape[1], width)
                began = time.perf_counter()
                executor.target.verify(lanes, inputs, plan)
                times.append(1e3 * (time.perf_counter() - began))
        return {"ms": {str(width): times for width, times in spent.items()}}

    def _plan(self, consumed: int, width: int) -> Plan:
        return Plan(width - 1, extent_for(consumed + width, self.rows), absorb=False)


def main() -> None:
    """Serve until the input ends."""
    channel = private_channel()
    made = argparse.ArgumentParser("passes_peer", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--model", required=True)
    made.add_argument("--threads", type=int, required=True)
    made.add_argument("--context", type=int, required=True)
    made.add_argument("--dtype", default="auto")
    peer = PassesPeer(**vars(made.parse_args()))
    serve(peer.facts(), {"passes": peer.passes}, channel)


if __name__ == "__main__":
    main()
