"""The peers of a comparison by name: how each is started, and which are running now.

Owns the processes' lives. flarechat's are started anew for every pass, as one that had met a prompt
before would copy its own answer; the others forget by themselves and are kept warm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import Peer, Spec
from flarechat.protocol import MAX_DRAFT_TOKENS

OFF, ADAPTIVE, HISTORY = "flarechat off", "flarechat adaptive", "flarechat adaptive+history"
FLARECHAT = (OFF, ADAPTIVE, HISTORY)
PASSES = "flarechat passes"
LLAMA, LOOKUP = "llama.cpp", "llama-cpp-python lookup"
SERVER, NGRAM = "llama-server", "llama-server n-gram"
PLAIN, PLAIN_LOOKUP = "transformers", "transformers lookup"
TRANSFORMERS = (PLAIN, PLAIN_LOOKUP)
ANSWERING = (*FLARECHAT, LLAMA, LOOKUP, SERVER, NGRAM, *TRANSFORMERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all peers of a run have in common. `python` is that of llama.cpp's environment and
    `server` its llama-server, where there is one."""

    model: str
    python: str
    server: str | None = None
    threads: int = 2
    context: int = 2048
    dtype: str = "auto"
    flash: str = "auto"


def specs_of(setting: Setting) -> dict[str, Spec]:
    """How every peer is started."""
    common = ("--model", setting.model, "--threads", str(setting.threads))
    sized = (*common, "--context", str(setting.context))
    flash = ("--flash", "off" if setting.flash == "auto" else setting.flash)
    typed = (*sized, "--dtype", setting.dtype)
    rows: list[tuple[str, str, str, tuple[str, ...]]] = [
        *((name, sys.executable, "flarechat_peer", (*typed, "--arm", name.partition(" ")[2]))
          for name in FLARECHAT),
        (PASSES, sys.executable, "passes_peer", typed),
        (LLAMA, setting.python, "llama_peer", (*sized, "--flash", setting.flash)),
        (LOOKUP, setting.python, "lookup_peer", (*sized, *flash)),
        (PLAIN, sys.executable, "transformers_peer", common),
        (PLAIN_LOOKUP, sys.executable, "transformers_peer",
         (*common, "--lookup", str(MAX_DRAFT_TOKENS))),
    ]  # fmt: skip
    if setting.server:
        served = ("--binary", setting.server, *sized, *flash)
        rows += [
            (SERVER, sys.executable, "server_peer", served),
            (NGRAM, sys.executable, "server_peer", (*served, "--ngram")),
        ]
    return {
        name: Spec(name=name, python=python, module=f"benchmarks.peers.{module}", flags=flags)
        for name, python, module, flags in rows
    }


Specs = Callable[[Setting], dict[str, Spec]]


def turns(names: Sequence[str], number: int) -> Sequence[str]:
    """The order of turn `number`: forwards and backwards by turns, so that a machine which slows
    down favours nobody."""
    return names if number % 2 == 0 else tuple(reversed(names))


class Crew:
    """The peers that are running. `facts` keeps what each said of itself when it started last."""

    def __init__(self, setting: Setting, log: Path | None = None, specs: Specs = specs_of) -> None:
        self.setting, self.log = setting, log
        self.facts: dict[str, dict[str, Any]] = {}
        self._specs, self._running = specs, dict[str, Peer]()

    @property
    def specs(self) -> dict[str, Spec]:
        """How every peer there is would be started."""
        return self._specs(self.setting)

    def sized(self, context: int) -> Crew:
        """Another crew with room for so many tokens; none of it runs."""
        return Crew(replace(self.setting, context=context), self.log, self._specs)

    def settle(self) -> None:
        """Have llama.cpp say whether flash attention is faster here, for all that it may be on."""
        if self.setting.flash == "auto":
            flash = str(self.get(LLAMA).facts["flash_attention"])
            self.setting = replace(self.setting, flash=flash)

    def known(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that there are."""
        return [name for name in names if name in self.specs]

    def get(self, name: str) -> Peer:
        """The running peer, started where it was not."""
        if name not in self._running:
            self._running[name] = self.start(name)
        return self._running[name]

    def start(self, name: str) -> Peer:
        """One of its own, for the caller to close."""
        peer = Peer.start(self.specs[name], self.log)
        self.facts[name] = peer.facts
        return peer

    def end(self, names: Iterable[str]) -> None:
        """End those that run; the next `get` starts them anew."""
        for name in names:
            if name in self._running:
                self._running.pop(name).close()

    def close(self) -> None:
        """End all."""
        self.end(list(self._running))
