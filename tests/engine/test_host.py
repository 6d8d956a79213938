"""The engine process behind its door: start, serve, cancel, die, close. A real child each time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.engine.host import EngineHost
from flarechat.models.sidecars import is_refusal
from flarechat.protocol import (
    Boot,
    Event,
    Failed,
    Finished,
    Loading,
    Message,
    Ready,
    Request,
    Round,
    Sampling,
    encode,
)
from tests.models import heads, tiny

PATIENCE = 60.0


@pytest.fixture
def host(tiny_gguf: Path) -> Iterator[Callable[..., EngineHost]]:
    made: list[EngineHost] = []

    def make(**boot: object) -> EngineHost:
        fields = {"model": str(tiny_gguf), "cache": str(paths.cache_dir()), "threads": 1, **boot}
        made.append(EngineHost(Boot(**fields)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(host: EngineHost, kind: type[Event], seen: list[Event] | None = None) -> Event:
    """Wait for the first event of a kind; a Failed one ends any wait."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        events = host.wait(1.0)
        if seen is not None:
            seen.extend(events)
        for event in events:
            if isinstance(event, kind | Failed):
                return event
    raise AssertionError(f"no {kind.__name__} within {PATIENCE} s")


def request(text: str, **fields: object) -> Request:
    messages = (Message(role="user", content=text),)
    return Request(id="one", messages=messages, sampling=Sampling(temperature=0), **fields)  # type: ignore[arg-type]


def test_it_loads_serves_and_leaves(host: Callable[..., EngineHost]) -> None:
    door, seen = host(), []
    door.start()
    ready = until(door, Ready, seen)
    door.submit(request("hello", max_tokens=9))
    finished = until(door, Finished, seen)
    process = door._process

    assert isinstance(ready, Ready) and ready.model.name == "Tiny"
    assert any(isinstance(e, Loading) for e in seen)
    assert isinstance(finished, Finished) and finished.usage.completion_tokens == 9
    assert sum(e.emitted for e in seen if isinstance(e, Round)) == 9
    door.close()
    assert process is not None and 0 == process.returncode
    assert not any(isinstance(e, Failed) for e in door.drain())


def test_what_became_of_the_draft_heads_comes_through_the_door(
    host: Callable[..., EngineHost], tmp_path: Path
) -> None:
    model = tiny.write(tmp_path / "tiny.gguf").path
    asked = heads.write(tmp_path / "elsewhere" / "mtp.safetensors")
    heads.beside(model, paths.cache_dir())
    door, seen = host(model=str(model), mtp_file=str(asked)), []
    door.start()
    ready = until(door, Ready)
    door.submit(request("hello hello", max_tokens=20))
    until(door, Finished, seen)

    assert isinstance(ready, Ready) and ready.model.mtp is not None
    assert "tiny-mtp.safetensors" == ready.model.mtp.file
    told = [str(asked) in notice for notice in ready.notices if is_refusal(notice)]
    assert [True] == told
    rounds = [event for event in seen if isinstance(event, Round)]
    assert "mtp" in {source for played in rounds for source in played.draft_sources}


def test_a_disk_that_takes_no_log_does_not_refuse_the_engine(
    host: Callable[..., EngineHost], tmp_path: Path
) -> None:
    paths.logs_dir().joinpath("engine.log").symlink_to("/dev/full")
    door = host(model=str(tmp_path / "nothing.gguf"))
    door.start()
    failed = until(door, Ready)

    assert isinstance(failed, Failed)
    assert "nothing.gguf" in failed.error.message


def test_a_model_that_is_not_there_fails_with_its_sentence(
    host: Callable[..., EngineHost], tmp_path: Path
) -> None:
    door = host(model=str(tmp_path / "nothing.gguf"))
    door.start()
    failed = until(door, Ready)

    assert isinstance(failed, Failed)
    assert "nothing.gguf" in failed.error.message
    assert 3 == failed.error.exception().exit_code


def test_cancel_during_prefill_ends_the_request(host: Callable[..., EngineHost]) -> None:
    door, seen = host(), []
    door.start()
    until(door, Ready)
    door.submit(request("hello " * 14, max_tokens=40))
    door.cancel("one")
    finished = until(door, Finished, seen)

    assert isinstance(finished, Finished) and finished.reason == "cancelled"


def test_a_killed_engine_is_reported_with_its_signal_and_its_log(
    host: Callable[..., EngineHost],
) -> None:
    door = host()
    door.start()
    until(door, Ready)
    assert door.pid is not None
    os.kill(door.pid, signal.SIGKILL)
    failed = until(door, Ready)

    assert isinstance(failed, Failed)
    assert "SIGKILL" in failed.error.message
    assert "engine.log" in failed.error.hint
    door.submit(request("still here?"))
    assert [] == door.wait(0.2)


def test_a_torn_command_ends_the_engine_instead_of_leaving_it_deaf(tiny_gguf: Path) -> None:
    boot = Boot(model=str(tiny_gguf), cache=str(paths.cache_dir()), threads=1)
    worker = subprocess.run(
        [sys.executable, "-m", "flarechat.engine.worker"],
        input=f'{encode(boot)}\n{{"event":"submit","requ',
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert 0 == worker.returncode


@pytest.mark.parametrize("line", ['{"event":"nonsense"}', "not json", '{"event":"round"}'])
def test_an_engine_that_speaks_nonsense_is_reported_and_nobody_waits_for_it(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flarechat.engine.host.COMMAND",
        [sys.executable, "-c", f"print({line!r}); input(); input()"],
    )
    door = EngineHost(Boot(model="m", cache="c"))
    door.start()
    failed = until(door, Ready)
    door.close(patience=0.2)

    assert isinstance(failed, Failed)
    assert "unreadable" in failed.error.message


def test_interrupting_the_terminal_does_not_reach_the_engine(
    host: Callable[..., EngineHost],
) -> None:
    door = host()
    door.start()
    until(door, Ready)
    assert door.pid is not None

    assert os.getpgid(door.pid) != os.getpgid(0)
    os.kill(door.pid, signal.SIGINT)
    door.submit(request("hello", max_tokens=3))
    assert isinstance(until(door, Finished), Finished)


def test_closing_while_it_loads_ends_the_child_at_once(host: Callable[..., EngineHost]) -> None:
    door = host()
    door.start()
    time.sleep(0.5)
    process = door._process
    door.close(patience=PATIENCE)
    door.close()

    assert process is not None and 0 == process.returncode
    assert not any(isinstance(event, Ready) for event in door.drain())


@pytest.mark.parametrize("layers", [3, 2**31])
def test_a_model_that_claims_layers_it_does_not_have_is_refused(
    host: Callable[..., EngineHost], tmp_path: Path, layers: int
) -> None:
    path = tiny.write(tmp_path / "tall.gguf", extra={"llama.block_count": layers}).path
    door = host(model=str(path))
    door.start()
    failed = until(door, Ready)

    assert isinstance(failed, Failed)
    assert 3 == failed.error.exception().exit_code


def test_the_engine_goes_when_its_host_is_killed(tiny_gguf: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from flarechat.engine.host import EngineHost\n"
        "from flarechat.protocol import Boot\n"
        f"door = EngineHost(Boot(model={str(tiny_gguf)!r}, cache={str(tmp_path)!r}))\n"
        "door.start(); door.wait(); print(door.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and _alive(child):
        time.sleep(0.05)

    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"
