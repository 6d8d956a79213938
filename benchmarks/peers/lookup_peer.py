"""llama-cpp-python with its prompt lookup as a peer: what its users get, by its own `generate`.

    ENV/bin/python -m benchmarks.peers.lookup_peer --model FILE --threads 2 --context 2048

Runs in the environment that has llama-cpp-python. Its documentation recommends two drafted tokens
on a CPU, which is what is offered here.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import llama_cpp as ll
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from benchmarks.peers.wire import Ask, Clock, private_channel, serve

DRAFTS = 2


class LookupPeer:
    """A loaded model that looks its drafts up in the text before."""

    def __init__(self, model: str, threads: int, context: int, flash: str) -> None:
        self.llama = ll.Llama(
            model, n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False,
            flash_attn=flash == "on", logits_all=True,
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=DRAFTS),
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """What it is, for the record."""
        return {
            "engine": "llama-cpp-python",
            "version": metadata.version("llama-cpp-python"),
            "drafts": DRAFTS,
            "pids": [os.getpid()],
        }

    def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request from an empty cache."""
        ask, clock, law = Ask.of(body), Clock(), Ask.of(body).law
        self.llama.reset()
        self.llama.set_seed(law.seed)
        tokens = self.llama.generate(
            list(ask.ids), temp=law.temperature, top_k=law.top_k, top_p=law.top_p, min_p=0.0,
            repeat_penalty=1.0,
        )  # fmt: skip
        vocab = ll.llama_model_get_vocab(self.llama.model)
        for token in tokens:
            if ll.llama_vocab_is_eog(vocab, token):
                break
            clock.got([token])
            if len(clock.tokens) == ask.tokens:
                break
        return clock.told()


def main() -> None:
    """Serve until the input ends."""
    channel = private_channel()
    made = argparse.ArgumentParser("lookup_peer", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--model", required=True)
    made.add_argument("--threads", type=int, required=True)
    made.add_argument("--context", type=int, required=True)
    made.add_argument("--flash", choices=("off", "on"), default="off")
    peer = LookupPeer(**vars(made.parse_args()))
    serve(peer.facts(), {"answer": peer.answer}, channel)


if __name__ == "__main__":
    main()
