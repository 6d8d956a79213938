"""transformers' generate() as a peer, in float32 with the dequantised weights of the same file.

    python -m benchmarks.peers.transformers_peer --model FILE --threads 2 --lookup 0

Float32 is its faster form on a CPU (bfloat16 reads half as much and computes far slower). `lookup`
is the number of tokens that prompt lookup may draft; 0 is plain decoding.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch

from benchmarks.h200.desk import Setup
from benchmarks.h200.peers import load
from benchmarks.peers.wire import Ask, Clock, private_channel, serve
from flarechat import paths


class Streamer:
    """What generate() hands its tokens to: first the prompt, then what it adds."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.begun = clock, False

    def put(self, ids: torch.Tensor) -> None:
        """Tokens, as they come."""
        if self.begun:
            self.clock.got(ids.flatten().tolist())
        self.begun = True

    def end(self) -> None:
        """Nothing more comes."""


class TransformersPeer:
    """The model and its terminal tokens."""

    def __init__(self, model: str, threads: int, lookup: int) -> None:
        torch.set_num_threads(threads)
        setup = Setup(model=model, cache=str(paths.cache_dir()), device="cpu", dtype="float32")
        self.model, language = load(setup)
        self.ends, self.lookup = list(language.eos), lookup

    def facts(self) -> dict[str, Any]:
        """What it is, for the record."""
        return {
            "engine": "transformers",
            "version": metadata.version("transformers"),
            "torch": torch.__version__,
            "dtype": "float32",
            "lookup": self.lookup,
            "pids": [os.getpid()],
        }

    def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request."""
        ask, law = Ask.of(body), Ask.of(body).law
        torch.manual_seed(law.seed)
        drawn = {"temperature": law.temperature, "top_k": law.top_k, "top_p": law.top_p}
        sampling: dict[str, Any] = (
            {"do_sample": True, **drawn} if law.temperature else {"do_sample": False}
        )
        more = {"prompt_lookup_num_tokens": self.lookup} if self.lookup else {}
        ids, clock = torch.tensor([list(ask.ids)]), Clock()
        with torch.inference_mode():
            self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=ask.tokens,
                eos_token_id=self.ends, pad_token_id=0, streamer=Streamer(clock), **sampling,
                **more,
            )  # fmt: skip
        return clock.told()


def main() -> None:
    """Serve until the input ends."""
    channel = private_channel()
    made = argparse.ArgumentParser("transformers_peer", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--model", required=True)
    made.add_argument("--threads", type=int, required=True)
    made.add_argument("--lookup", type=int, default=0)
    peer = TransformersPeer(**vars(made.parse_args()))
    serve(peer.facts(), {"answer": peer.answer}, channel)


if __name__ == "__main__":
    main()
