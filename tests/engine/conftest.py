"""A tiny llama GGUF and engines booted on it, the way the engine process boots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from flarechat.engine.boot import boot_engine
from flarechat.engine.engine import Engine
from flarechat.protocol import Boot, Event, Finished, Message, Request, Round
from tests.engine.tiny import shared
from tests.models import tiny


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny tensors gain nothing from threads, and waiting threads slow a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.write(folder / "tiny.gguf").path


@pytest.fixture(scope="session")
def model() -> LlamaForCausalLM:
    """The tiny llama that the page is compared with."""
    return shared()[0]


@pytest.fixture(scope="session")
def truth() -> dict[int, list[int]]:
    """What plain decoding says after each of its prompts."""
    return shared()[1]


class Desk:
    """An engine with everything it said, for tests that talk to it directly."""

    def __init__(self, model: Path, cache: Path, **boot: object) -> None:
        self.events: list[Event] = []
        self.engine: Engine = boot_engine(
            Boot(model=str(model), cache=str(cache), **boot),  # type: ignore[arg-type]
            self.events.append,
        )
        self._count = 0

    def request(self, text: str, **fields: object) -> Request:
        self._count += 1
        messages = (Message(role="user", content=text),)
        return Request(id=f"r{self._count}", messages=messages, **fields)  # type: ignore[arg-type]

    def ask(self, text: str, **fields: object) -> tuple[Finished, list[Round]]:
        """Answer one request to its end."""
        return self.answer(self.request(text, **fields))

    def answer(self, request: Request) -> tuple[Finished, list[Round]]:
        self.engine.submit(request)
        self.run()
        return self.finished(request.id), self.rounds(request.id)

    def run(self) -> None:
        while self.engine.busy:
            self.engine.step()

    def of(self, request: str) -> list[Event]:
        return [e for e in self.events if getattr(e, "request", None) == request]

    def rounds(self, request: str) -> list[Round]:
        return [e for e in self.of(request) if isinstance(e, Round)]

    def finished(self, request: str) -> Finished:
        (last,) = [e for e in self.of(request) if isinstance(e, Finished)]
        return last


@pytest.fixture
def desk(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Desk]:
    cache = tmp_path_factory.getbasetemp() / "tiny-cache"
    cache.mkdir(exist_ok=True)

    def make(**boot: object) -> Desk:
        return Desk(tiny_gguf, cache, **{"dtype": "float32", **boot})

    return make


@pytest.fixture
def learned_desk(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Desk]:
    """Engines on a softened tiny model, with a good draft head unless `mtp` is False."""
    from tests.engine.learned import LearnedDesk, write_head

    cache = tmp_path_factory.getbasetemp() / "tiny-cache"
    cache.mkdir(exist_ok=True)
    head = write_head(tmp_path_factory.mktemp("head"), tiny_gguf, cache)

    def make(**boot: object) -> Desk:
        return LearnedDesk(tiny_gguf, cache, **{"mtp_file": str(head), **boot})

    return make
