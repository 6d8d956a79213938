"""The children that a comparison asks: flarechat behind its door, its passes, llama-server."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks.peers.flarechat_peer import FlarechatPeer
from benchmarks.peers.passes_peer import PassesPeer
from benchmarks.peers.server_peer import ServerPeer
from benchmarks.peers.transformers_peer import Streamer, TransformersPeer
from benchmarks.peers.wire import Ask, Clock, Law, Told
from flarechat.bench.arms import parse_arms
from flarechat.errors import ModelError
from flarechat.protocol import Event, Finished, Speculation
from tests.bench.bench_doors import COPIED
from tests.fakes import ScriptedEngine
from tests.models import tiny

LAW = Law(temperature=0.7, top_k=50, top_p=0.95, seed=3)
BODY = asdict(
    Ask(messages=[{"role": "user", "content": "Hi"}], ids=list(range(12)), tokens=6, law=LAW)
)
# A server of llama.cpp's words: what it was started with and asked comes back from /seen.
STUB = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

asked = []

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(json.dumps([sys.argv[1:], asked]).encode() if "seen" in self.path else b"ok")

    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        said = [{{"tokens": [n]}} for n in (7, 8, 9)] + [{{"tokens": [], "stop": True}}]
        self.reply(b"".join(b"data: " + json.dumps(part).encode() + b"\\n\\n" for part in said))

    def reply(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *told):
        pass

if "--version" in sys.argv:
    print("version: 11434 (abc)", file=sys.stderr)
elif "--spec-type" in sys.argv and "32" in sys.argv:
    sys.exit(1)
else:
    port = int(sys.argv[sys.argv.index("--port") + 1])
    HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def peer_of(door: ScriptedEngine, arm: str = "adaptive+history") -> FlarechatPeer:
    door.start()
    (drafting,) = parse_arms(arm, Speculation())
    return FlarechatPeer(door, drafting)


class Learning(ScriptedEngine):
    """One whose controller counts the answers it has seen."""

    def drain(self) -> list[Event]:
        return [
            replace(e, controller={"seen": len(self.requests)}) if isinstance(e, Finished) else e
            for e in super().drain()
        ]


def test_flarechat_is_asked_for_the_very_law_and_arm_and_its_controller_goes_on() -> None:
    door = Learning([COPIED])
    peer = peer_of(door)
    first, second = (Told(**peer.answer(BODY)) for _ in range(2))

    assert first.first_tokens == 3 and len(first.tokens) == len(second.tokens) == 4
    asked = door.requests[1]
    assert asdict(asked.sampling).items() >= asdict(LAW).items()
    assert asked.speculation.history_drafts and asked.max_tokens == 6
    assert door.requests[0].id != asked.id
    assert (door.requests[0].controller, asked.controller) == (None, {"seen": 1})
    assert peer.facts()["executor"] == "eager"


def test_other_prompt_tokens_in_flarechat_are_refused() -> None:
    peer = peer_of(ScriptedEngine(prompt_tokens=13), "off")
    with pytest.raises(ValueError, match="13 tokens, not 12"):
        peer.answer(BODY)


def test_an_engine_that_does_not_load_says_why() -> None:
    with pytest.raises(ModelError, match="no such file"):
        peer_of(ScriptedEngine(failure=ModelError("There is no such file.")))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerPeer]:
    peer = ServerPeer(str(stub(tmp_path)), "m.gguf", 2, 64, "on", ngram=True)
    yield peer
    peer.close()


def stub(folder: Path) -> Path:
    binary = folder / "llama-server"
    binary.write_text(STUB.format(python=sys.executable), "utf-8")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return binary


def test_a_server_streams_tokens_and_is_asked_for_the_law_without_its_cache(
    server: ServerPeer,
) -> None:
    import urllib.request

    told = Told(**server.answer(BODY))
    with urllib.request.urlopen(f"{server.address}/seen") as body:
        flags, (asked,) = json.load(body)

    assert list(told.tokens) == [7, 8, 9] and told.first_tokens == 1
    assert asked["prompt"] == BODY["ids"] and asked["cache_prompt"] is False
    assert (asked["temperature"], asked["top_k"], asked["seed"]) == (0.7, 50, 3)
    assert flags[flags.index("-fa") + 1] == "on" and "ngram-simple" in flags
    assert server.facts()["version"] == "version: 11434 (abc)"


def test_a_server_that_ends_is_said(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="did not come up with -t 2"):
        ServerPeer(str(stub(tmp_path)), "m.gguf", 2, 32, "on", ngram=True)


def test_passes_of_every_width_are_timed_and_stand_behind_the_same_prompt(tmp_path: Path) -> None:
    model = tiny.write(tmp_path / "tiny.gguf").path
    peer = PassesPeer(str(model), 1, 64, "float32")
    calls: list[tuple[int, int]] = []
    target = peer.desk.engine.executor.target  # type: ignore[attr-defined]
    verify = target.verify

    def seen(lanes: object, inputs: torch.Tensor, plan: object) -> object:
        calls.append((inputs.shape[1], int(peer.desk.engine.pool.consumed[0])))
        return verify(lanes, inputs, plan)

    target.verify = seen
    for _ in range(2):
        spent = peer.passes({"ids": list(range(1, 21)), "widths": [1, 3], "repeats": 2})["ms"]

    assert {width: len(times) for width, times in spent.items()} == {"1": 2, "3": 2}
    assert calls == [(1, 20), (3, 20)] * 4
    assert peer.facts()["pids"] == [os.getpid()]
    peer.desk.close()


def test_transformers_answers_in_tokens_of_its_own_and_looks_up(tmp_path: Path) -> None:
    model = str(tiny.write(tmp_path / "tiny.gguf").path)
    threads = torch.get_num_threads()
    plain, looking = (TransformersPeer(model, threads, lookup) for lookup in (0, 7))
    body = {**BODY, "law": asdict(Law(seed=3)), "ids": [5, 6, 7, 5, 6, 7, 5, 6], "tokens": 8}
    first, second = (Told(**peer.answer(body)) for peer in (plain, looking))

    assert 1 <= len(first.tokens) <= 8 and list(first.tokens) == list(second.tokens)
    drawn = [Told(**plain.answer({**body, "law": asdict(LAW)})).tokens for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_a_streamer_takes_the_prompt_for_no_answer() -> None:
    clock = Clock()
    streamer = Streamer(clock)
    streamer.put(torch.tensor([[1, 2, 3]]))
    streamer.put(torch.tensor([4]))
    streamer.end()

    assert clock.tokens == [4]
