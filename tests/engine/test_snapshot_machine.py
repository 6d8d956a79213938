"""Any order of questions, stops, edits, branches, repeats, losses, tight budgets, crashes and files
that go says what an engine says that computes every prompt anew, drafts as it drafts, and leaves
what it leaves. Nothing private is ever on disk."""

from __future__ import annotations

import random as chance
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flarechat.engine import engine as engine_module
from flarechat.engine.player import RECALLED
from flarechat.engine.vault import Vault
from flarechat.protocol import Speculation
from flarechat.vault.folder import VaultFolder
from flarechat.vault.nodefile import SUFFIX, Header, read_header
from tests.engine.conftest import Desk
from tests.engine.restoring import (
    MTP,
    Said,
    ask,
    asking,
    heard,
    llama,
    lose,
    qwen,
    state_of,
    text_of,
    with_vault,
)
from tests.engine.test_snapshot_tree import assert_sound

CONTEXT, CHUNK = 512, 16
OFF = Speculation(draft_tokens=0)
hows = st.sampled_from([MTP, MTP, OFF])


class Chats(RuleBasedStateMachine):
    """`texts` are what was said so far, prompts and answers, each a list of tokens; `told` those
    that were no secret."""

    make: Callable[..., Desk] = staticmethod(llama)

    def __init__(self) -> None:
        super().__init__()
        self.chunk, engine_module.PREFILL_CHUNK = engine_module.PREFILL_CHUNK, CHUNK
        self.folder = TemporaryDirectory(prefix="flarechat-vault-")
        self.vaults: list[Vault] = []
        self.plain = self.make(prefix_cache=0, context=CONTEXT)
        self.start()
        self.texts: list[list[int]] = [[5, 6, 7]]
        self.told: list[tuple[int, ...]] = []
        self.asked = 0

    def start(self) -> None:
        """Another engine begins on what lies on disk."""
        self.made = self.make(lanes=2, context=CONTEXT)
        self.tree = self.made.engine.bookings.keeper.tree
        self.vaults.append(with_vault(self.made, Path(self.folder.name)))
        self.made.engine.begin()

    def teardown(self) -> None:
        engine_module.PREFILL_CHUNK = self.chunk
        assert all(vault.close(20.0) for vault in self.vaults)
        headers = {header.digest: header for header in self.headers()}
        for header in headers.values():
            said = self.said(header, headers)
            assert any(said == text[: len(said)] for text in self.told)
        self.folder.cleanup()

    def headers(self) -> list[Header]:
        return [read_header(path) for path in Path(self.folder.name).rglob(f"*{SUFFIX}")]

    def said(self, header: Header, headers: dict[str, Header]) -> tuple[int, ...]:
        """All tokens of a node's file, as far as what it hangs on is there."""
        above = headers.get(header.parent)
        if above is None:
            return () if not header.first else header.tokens
        before = self.said(above, headers)
        kept = len(before) - len(above.tokens) + header.offset
        return (*before[:kept], *header.tokens) if before else ()

    @initialize(plain=st.booleans())
    def begin(self, plain: bool) -> None:
        """Recalled rounds offer no drafts: with `plain`, no first round does."""
        own = self.made.engine.player
        own.plain_start = own.plain_start or plain
        self.plain.engine.player.plain_start = own.plain_start

    @rule(
        at=st.integers(0, 99), cut=st.floats(0, 1), new=st.integers(0, 40),
        count=st.integers(1, 20), how=hows, private=st.booleans(),
    )  # fmt: skip
    def go_on(
        self, at: int, cut: float, new: int, count: int, how: Speculation, private: bool
    ) -> None:
        """A new turn, a branch or an edit: some beginning of what was said, and more."""
        self.check([self.prompt(at, cut, new)], count, how, private=private)

    @rule(at=st.integers(0, 99), count=st.integers(1, 20), steps=st.integers(1, 8), how=hows)
    def stop(self, at: int, count: int, steps: int, how: Speculation) -> None:
        """An answer that is cut off after some steps."""
        request = asking(self.made, self.prompt(at, 1, 20), max_tokens=count, speculation=how)
        self.made.engine.submit(request)
        for _ in range(steps):
            if self.made.engine.busy:
                self.made.engine.step()
        self.made.engine.cancel(request.id)
        self.made.run()
        said = [t for r in self.made.rounds(request.id) for t in r.tokens]
        prompt = [*map(int, request.messages[0].content.split())]
        self.told.append((*prompt, *said))
        if said:
            self.texts.append([*prompt, *said])

    @rule(at=st.integers(0, 99), count=st.integers(1, 20), how=hows)
    def again(self, at: int, count: int, how: Speculation) -> None:
        """The same prompt once more, twice at once."""
        prompt = self.prompt(at, 1, 0)
        self.check([prompt, prompt], count, how)

    @rule()
    def lose(self) -> None:
        """No slot has anything any more."""
        lose(self.made)

    @rule(size=st.sampled_from([0.0, 0.3, 0.7]))
    def evict(self, size: float) -> None:
        """Much goes at once; from then on a little more may come."""
        self.tree.resize(int(self.tree.nbytes * size))
        self.tree.resize(self.tree.nbytes + 60_000)

    @rule()
    def crash(self) -> None:
        """The engine ends without a word; another begins."""
        plain_start = self.made.engine.player.plain_start
        self.start()
        self.made.engine.player.plain_start = plain_start

    @rule(count=st.integers(1, 4), seed=st.integers(0, 99))
    def trim(self, count: int, seed: int) -> None:
        """Somebody deletes files that nothing hangs on."""
        headers = self.headers()
        stems = {header.parent for header in headers}
        leaves = sorted(header.digest for header in headers if header.digest not in stems)
        folder, owner = VaultFolder(Path(self.folder.name)), self.tree.root.digest
        gone = chance.Random(seed).sample(leaves, min(count, len(leaves)))
        folder.drop(folder.place(owner, digest) for digest in gone)

    @invariant()
    def sound(self) -> None:
        assert_sound(self.tree)

    def prompt(self, at: int, cut: float, new: int) -> list[int]:
        self.asked += 1
        own = self.texts[at % len(self.texts)]
        kept = own[: max(1, int(len(own) * cut))] + text_of(new, self.asked)
        return kept[: CONTEXT - 80]

    def check(
        self, prompts: list[list[int]], count: int, how: Speculation, *, private: bool = False
    ) -> None:
        """Prompts answered together, each as an engine answers it that has nothing."""
        fields = {"max_tokens": count, "speculation": how, "private": private}
        requests = [asking(self.made, prompt, **fields) for prompt in prompts]
        for request in requests:
            self.made.engine.submit(request)
        self.made.run()
        for prompt, request in zip(prompts, requests, strict=True):
            lose(self.plain)
            expected = ask(self.plain, prompt, max_tokens=count, speculation=how)
            self.compare(heard(self.made, request), expected)
            self.texts.append([*prompt, *expected.tokens])
            if not private:
                self.told.append((*prompt, *expected.tokens))

    def compare(self, said: Said, expected: Said) -> None:
        assert expected.tokens == said.tokens
        recalled = any(r.reason == RECALLED for r in said.rounds)
        if self.plain.engine.player.plain_start or not recalled:
            assert expected.played == said.played
        held = self.plain.engine.residents.held(0)
        for slot in range(2):
            if self.made.engine.residents.held(slot) == held:
                self.compare_states(state_of(self.made, slot), state_of(self.plain))

    def compare_states(self, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        learned = self.made.engine.drafter.learned  # type: ignore[attr-defined]
        plain = self.plain.engine.drafter.learned  # type: ignore[attr-defined]
        both = [*learned.ready, *plain.ready]
        for name, value in ours.items():
            if name.startswith("draft.0") and min(both) < CONTEXT and not learned.always_absorbs:
                continue  # rows of requests without MTP, which are made when one with it comes
            torch.testing.assert_close(value, theirs[name], atol=2e-4, rtol=1e-3)


class Recurrences(Chats):
    """The same of a model whose state is kept whole."""

    make = staticmethod(qwen)


_HOW = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TestLlama = Chats.TestCase
TestLlama.settings = settings(max_examples=20, stateful_step_count=12, **_HOW)
TestRecurrence = Recurrences.TestCase
TestRecurrence.settings = settings(max_examples=6, stateful_step_count=8, **_HOW)
