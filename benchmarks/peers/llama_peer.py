"""llama.cpp as a peer, by its C interface: its own loop, its own sampler chain, nothing between.

    ENV/bin/python -m benchmarks.peers.llama_peer --model FILE --threads 2 --context 2048

Runs in the environment that has llama-cpp-python. The loop is that of llama.cpp's own `simple`
example; Python makes three calls a token. Keys and values are fp16, batches have the default size.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import llama_cpp as ll
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from benchmarks.peers.wire import Ask, Clock, Law, private_channel, serve

FLASH = {"off": ll.LLAMA_FLASH_ATTN_TYPE_DISABLED, "on": ll.LLAMA_FLASH_ATTN_TYPE_ENABLED}
CALIBRATION_DEPTH, CALIBRATION_STEPS, CALIBRATION_TURNS = 512, 24, 3


class LlamaPeer:
    """A loaded model and the context that answers; `flash` is on, off or auto: the faster one."""

    def __init__(self, model: str, threads: int, context: int, flash: str) -> None:
        ll.llama_backend_init()
        self.model = ll.llama_model_load_from_file(model.encode(), ll.llama_model_default_params())
        if not self.model:
            raise ValueError(f"llama.cpp does not load {model}")
        self.vocab = ll.llama_model_get_vocab(self.model)
        self.threads, self.context_size = threads, context
        self.format = Jinja2ChatFormatter(
            self._said("tokenizer.chat_template"), self._spelled(ll.llama_vocab_eos(self.vocab)),
            self._spelled(ll.llama_vocab_bos(self.vocab)),
        )  # fmt: skip
        self.calibrated: dict[str, float] = {}
        if flash == "auto":
            flash = self._faster()
        self.flash, self.context = flash, self._context(flash)

    def facts(self) -> dict[str, Any]:
        """What it is, for the record."""
        return {
            "engine": "llama.cpp",
            "version": f"llama-cpp-python {metadata.version('llama-cpp-python')}",
            "system": ll.llama_print_system_info().decode().strip(),
            "flash_attention": self.flash,
            "calibrated_ms": self.calibrated,
            "pids": [os.getpid()],
        }

    def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request from an empty cache."""
        ask, clock = Ask.of(body), Clock()
        prompt = self.encode(ask.messages)
        self._read(self.context, prompt)
        chain = chain_of(ask.law)
        try:
            for step in range(ask.tokens):
                token = ll.llama_sampler_sample(chain, self.context, -1)
                if ll.llama_vocab_is_eog(self.vocab, token):
                    break
                clock.got([token])
                if step + 1 < ask.tokens:
                    self._decode(self.context, [token])
        finally:
            ll.llama_sampler_free(chain)
        return clock.told(prompt=prompt)

    def passes(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Milliseconds of passes over W tokens behind `ids`, logits for all rows, by width; widths
        take turns."""
        ids, memory = body["ids"], ll.llama_get_memory(self.context)
        self._read(self.context, ids)
        batch = ll.llama_batch_init(max(body["widths"]), 0, 1)
        spent: dict[int, list[float]] = {width: [] for width in body["widths"]}
        for _ in range(body["repeats"]):
            for width, times in spent.items():
                _fill(batch, ids[:width], len(ids))
                began = time.perf_counter()
                _checked(ll.llama_decode(self.context, batch))
                ll.llama_get_logits_ith(self.context, width - 1)
                times.append(1e3 * (time.perf_counter() - began))
                ll.llama_memory_seq_rm(memory, 0, len(ids), -1)
        ll.llama_batch_free(batch)
        return {"ms": {str(width): times for width, times in spent.items()}}

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt's tokens by the file's own template and vocabulary."""
        text = self.format(messages=list(messages)).prompt.encode()
        room = (ll.llama_token * (len(text) + 8))()
        count = ll.llama_tokenize(self.vocab, text, len(text), room, len(room), False, True)
        return list(room[:count])

    def _context(self, flash: str) -> Any:
        asked = ll.llama_context_default_params()
        asked.n_ctx = self.context_size
        asked.n_threads = asked.n_threads_batch = self.threads
        asked.flash_attn_type = FLASH[flash]
        asked.no_perf = True
        context = ll.llama_init_from_model(self.model, asked)
        if not context:
            raise ValueError(f"llama.cpp makes no context of {self.context_size} tokens")
        return context

    def _faster(self) -> str:
        """On or off, whichever decodes faster at a middling depth; they take turns."""
        contexts = {flash: self._context(flash) for flash in FLASH}
        spent: dict[str, list[float]] = {flash: [] for flash in FLASH}
        for _ in range(CALIBRATION_TURNS):
            for flash, context in contexts.items():
                self._read(context, [1000 + n for n in range(CALIBRATION_DEPTH)])
                for step in range(CALIBRATION_STEPS):
                    began = time.perf_counter()
                    self._decode(context, [2000 + step])
                    spent[flash].append(1e3 * (time.perf_counter() - began))
        for context in contexts.values():
            ll.llama_free(context)
        self.calibrated = {flash: round(statistics.median(t), 3) for flash, t in spent.items()}
        return min(self.calibrated, key=lambda flash: self.calibrated[flash])

    def _read(self, context: Any, ids: Sequence[int]) -> None:
        """Put a prompt into an empty cache, a batch at a time."""
        ll.llama_memory_clear(ll.llama_get_memory(context), True)
        size = ll.llama_n_batch(context)
        for start in range(0, len(ids), size):
            self._decode(context, ids[start : start + size])

    def _decode(self, context: Any, ids: Sequence[int]) -> None:
        tokens = (ll.llama_token * len(ids))(*ids)
        _checked(ll.llama_decode(context, ll.llama_batch_get_one(tokens, len(ids))))

    def _said(self, key: str) -> str:
        room = ctypes.create_string_buffer(1 << 16)
        size = ll.llama_model_meta_val_str(self.model, key.encode(), room, len(room))
        if size < 0:
            raise ValueError(f"the model file has no {key}")
        return room.value.decode()

    def _spelled(self, token: int) -> str:
        return ll.llama_vocab_get_text(self.vocab, token).decode() if token >= 0 else ""


def chain_of(law: Law) -> Any:
    """llama.cpp's sampler for a law."""
    chain = ll.llama_sampler_chain_init(ll.llama_sampler_chain_default_params())
    if law.temperature == 0:
        links = [ll.llama_sampler_init_greedy()]
    else:
        links = [
            ll.llama_sampler_init_top_k(law.top_k),
            ll.llama_sampler_init_top_p(law.top_p, 1),
            ll.llama_sampler_init_temp(law.temperature),
            ll.llama_sampler_init_dist(law.seed),
        ]
    for link in links:
        ll.llama_sampler_chain_add(chain, link)
    return chain


def _fill(batch: Any, ids: Sequence[int], start: int) -> None:
    """Tokens from position `start` on, with logits for every one."""
    batch.n_tokens = len(ids)
    for row, token in enumerate(ids):
        batch.token[row], batch.pos[row] = token, start + row
        batch.n_seq_id[row], batch.logits[row] = 1, True
        batch.seq_id[row][0] = 0


def _checked(code: int) -> None:
    if code:
        raise RuntimeError(f"llama_decode returned {code}")


def main() -> None:
    """Serve until the input ends."""
    channel = private_channel()
    made = argparse.ArgumentParser("llama_peer", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--model", required=True)
    made.add_argument("--threads", type=int, required=True)
    made.add_argument("--context", type=int, required=True)
    made.add_argument("--flash", choices=("auto", *FLASH), default="auto")
    peer = LlamaPeer(**vars(made.parse_args()))
    serve(peer.facts(), {"answer": peer.answer, "passes": peer.passes}, channel)


if __name__ == "__main__":
    main()
