"""flarechat as a peer, through the door that `flarechat run` uses: one arm, one engine process.

python -m benchmarks.peers.flarechat_peer --model FILE --arm off --threads 2 --context 2048
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.wire import Ask, Clock, private_channel, serve
from flarechat.bench import machine
from flarechat.bench.arms import Arm, parse_arms
from flarechat.bench.runner import checked, wait_ready
from flarechat.config import Settings
from flarechat.engine.host import EngineHost
from flarechat.launch import boot_of
from flarechat.protocol import (
    EngineDoor,
    Failed,
    Finished,
    Message,
    Request,
    Round,
    Sampling,
    Speculation,
    Started,
)


class FlarechatPeer:
    """An engine, the arm that it drafts by, and what its controller learned so far."""

    def __init__(self, door: EngineDoor, arm: Arm) -> None:
        self.door, self.arm = door, arm
        self.ready = wait_ready(door)
        self._controller: dict[str, Any] | None = None
        self._asked = 0

    def facts(self) -> dict[str, Any]:
        """What it is, for the record."""
        model = self.ready.model
        return {
            "engine": "flarechat",
            "version": machine.versions(("flarechat",)).get("flarechat", ""),
            "dtype": model.dtype,
            "executor": model.rounds,
            "mtp": dataclasses.asdict(model.mtp) if model.mtp else None,
            "notices": list(self.ready.notices),
        }

    def answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request. The controller goes on from what it learned in the last one."""
        ask = Ask.of(body)
        self._asked += 1
        request = Request(
            id=f"a{self._asked}",
            messages=tuple(Message(role=m["role"], content=m["content"]) for m in ask.messages),
            sampling=Sampling(**dataclasses.asdict(ask.law)),
            speculation=self.arm.speculation,
            max_tokens=ask.tokens,
            controller=self._controller,
        )
        clock, restored = Clock(), 0
        self.door.submit(request)
        while True:
            for event in self.door.wait(1.0):
                if isinstance(event, Failed):
                    raise event.error.exception()
                if isinstance(event, Started):
                    restored = event.restored_tokens
                    if event.prompt_tokens != len(ask.ids):
                        raise ValueError(f"{event.prompt_tokens} tokens, not {len(ask.ids)}")
                if isinstance(event, Round):
                    clock.got(event.tokens)
                if isinstance(event, Finished):
                    self._controller = checked(event).controller
                    return clock.told(restored=restored)


def engine_of(arm: Arm, asked: argparse.Namespace) -> EngineHost:
    """An engine process that is loading; one that never drafts by a head loads none."""
    settings = Settings(
        model=asked.model, ctx=asked.context, threads=asked.threads, dtype=asked.dtype,
        device="cpu", mtp=arm.speculation.learned,
    )  # fmt: skip
    door = EngineHost(boot_of(settings, lambda *told: None))
    door.start()
    return door


def main() -> None:
    """Serve until the input ends."""
    channel = private_channel()
    made = argparse.ArgumentParser("flarechat_peer", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--model", required=True)
    made.add_argument("--arm", required=True)
    made.add_argument("--threads", type=int, required=True)
    made.add_argument("--context", type=int, required=True)
    made.add_argument("--dtype", default="auto")
    asked = made.parse_args()
    (arm,) = parse_arms(asked.arm, Speculation())
    door = engine_of(arm, asked)
    try:
        peer = FlarechatPeer(door, arm)
        serve({**peer.facts(), "pids": [door.pid]}, {"answer": peer.answer}, channel)
    finally:
        door.close()


if __name__ == "__main__":
    main()
