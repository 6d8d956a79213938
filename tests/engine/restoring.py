"""Engines whose prompts are token numbers, whose slots can be lost, and whose state is compared.

A long context for the softened tiny llama with its head; a disk that is a dictionary.
"""

from __future__ import annotations

import random as chance
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from flarechat.engine.snapshots import Node
from flarechat.engine.state.indexer import RING
from flarechat.engine.vault import Vault
from flarechat.protocol import Finished, Message, Request, Round, Sampling, Speculation, Started
from tests.engine.conftest import Desk
from tests.engine.learned import LearnedDesk, write_head
from tests.engine.qwen38.test_end_to_end import fresh_desk
from tests.models import tiny

Make = Callable[..., Desk]
LAW = Sampling(temperature=1.0, top_k=20, seed=3)
MTP = Speculation(history_drafts=False, adaptive=False, draft_tokens=3)
BOTH = Speculation(adaptive=False, draft_tokens=5)
SPOILT = 1e3
_KEPT = TemporaryDirectory(prefix="flarechat-long-")


def tokens_of(messages: Sequence[Message], thinking: bool = True) -> list[int]:
    """The tokens that a message names."""
    return [int(word) for word in messages[0].content.split()]


def numbered(desk: Desk) -> Desk:
    """The same desk, asked in token numbers; no token ends an answer."""
    desk.engine.language = replace(desk.engine.language, encode_chat=tokens_of, eos=())
    return desk


@cache
def files() -> tuple[Path, Path]:
    """The tiny llama with a long context, and its head."""
    folder = Path(_KEPT.name)
    model = tiny.write(folder / "long.gguf", extra={"llama.context_length": 6144}).path
    return model, write_head(folder, model, folder)


def llama(**boot: object) -> Desk:
    """An engine on the softened tiny llama with its head and room for long texts."""
    model, head = files()
    return numbered(LearnedDesk(model, model.parent, mtp_file=str(head), **boot))


def qwen(**boot: object) -> Desk:
    """An engine on the random tiny qwen38 with its head."""
    return numbered(fresh_desk("nvfp4", **boot))


def text_of(count: int, seed: int = 0) -> list[int]:
    """So many tokens, drawn."""
    draw = chance.Random(seed)
    return [draw.randrange(3, 250) for _ in range(count)]


@dataclass(frozen=True)
class Said:
    """One answer: its events, and the tokens of its rounds."""

    started: Started
    finished: Finished
    rounds: list[Round]

    @property
    def tokens(self) -> list[int]:
        return list(chain.from_iterable(r.tokens for r in self.rounds))

    @property
    def played(self) -> list[tuple[object, ...]]:
        """What every round put up and what of it was kept."""
        return [(r.offered, r.accepted, r.sources, r.tokens) for r in self.rounds]


def asking(desk: Desk, tokens: Sequence[int], **fields: object) -> Request:
    """A request whose prompt is these tokens."""
    own = {"sampling": LAW, "max_tokens": 64, "speculation": MTP, **fields}
    return desk.request(" ".join(map(str, tokens)), **own)


def heard(desk: Desk, request: Request) -> Said:
    """What came of a request that ended."""
    (started,) = [e for e in desk.of(request.id) if isinstance(e, Started)]
    return Said(started, desk.finished(request.id), desk.rounds(request.id))


def ask(desk: Desk, tokens: Sequence[int], **fields: object) -> Said:
    """Answer one prompt to its end."""
    request = asking(desk, tokens, **fields)
    desk.answer(request)
    return heard(desk, request)


def lose(desk: Desk) -> None:
    """Nothing that any slot holds is there any more."""
    engine = desk.engine
    for slot in range(engine.pool.slots):
        engine.residents.forget(slot)
        engine.drafter.restored(slot, 0)
    for state in engine.bookings.keeper._states.values():
        for tensor in state.tensors().values():
            tensor.fill_(SPOILT if tensor.is_floating_point() else 1)


def state_of(desk: Desk, slot: int = 0) -> dict[str, Tensor]:
    """All that the states of target and drafter have of the tokens that a slot holds."""
    rows = len(desk.engine.residents.held(slot))
    told = {
        place + name: view.clone()
        for place, state in desk.engine.bookings.keeper._states.items()
        for name, view in (state.by_token(slot, 0, rows) | state.beside(slot)).items()
    }
    for name in [name for name in told if name.endswith("ring")]:
        # Of raw keys only those of the open block mean something.
        keys = rows - name.startswith("draft")
        told[name] = told[name][:, [at % RING for at in range(keys - keys % 4, keys)]]
    return told


def assert_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """To the bit."""
    assert ours.keys() == theirs.keys()
    wrong = [name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])]
    assert not wrong, f"not the same: {wrong}"


def emptied(desk: Desk) -> Desk:
    """The same engine as at its start: no snapshot, no store, nothing in its slots."""
    tree = desk.engine.bookings.keeper.tree
    tree.store = None
    for node in [node for node in tree.nodes.values() if node.parent is tree.root]:
        tree.drop(node)
    lose(desk)
    return desk


def with_vault(desk: Desk, root: Path, *, budget: int = 64 << 20) -> Vault:
    """Give an engine the vault below a folder, as its boot does."""
    keeper, pool = desk.engine.bookings.keeper, desk.engine.pool
    vault = Vault(
        root, keeper.tree.identity, model="tiny", budget=budget, context=pool.context,
        device=pool.device, fits=keeper.fits,
    )  # fmt: skip
    keeper.tree.store = vault
    return vault


class Disk:
    """A store that keeps copies of nodes in a dictionary."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[Node, dict[str, Tensor]]] = {}
        self.loaded = 0

    def keep(self, node: Node) -> None:
        for each in node.path():
            if each.tensors is not None and not each.private:
                copies = {name: tensor.clone() for name, tensor in each.tensors.items()}
                self.nodes.setdefault(each.digest, (each, copies))

    def keeps(self, node: Node) -> bool:
        return self.holds(node)

    def holds(self, node: Node) -> bool:
        return node.digest in self.nodes

    def expect(self, nodes: Sequence[Node]) -> None:
        """Nothing is read ahead."""

    def load(self, node: Node) -> Mapping[str, Tensor] | None:
        self.loaded += 1
        found = self.nodes.get(node.digest)
        return None if found is None else found[1]

    def news(self, tree: object) -> list[Node]:
        return []

    def notices(self) -> tuple[str, ...]:
        return ()

    def begin(self) -> None:
        """It knows what it has."""

    def close(self, seconds: float) -> bool:
        return True
