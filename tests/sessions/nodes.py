"""Small files of the vault for tests of what carries them, written by safetensors itself; sessions
whose answers name them.

What a node holds follows from all tokens up to its last, as what a model computes does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from flarechat import paths
from flarechat.protocol import Finished, Sampling, Speculation, Usage
from flarechat.sessions import names, store
from flarechat.sessions.session import new_header
from flarechat.sessions.turns import Turn
from flarechat.vault.folder import VaultFolder
from flarechat.vault.identity import Identity, digest_of
from flarechat.vault.nodefile import metadata, sealed

MODEL = Identity(recipe="llama", fingerprint="f" * 64, dtype="float32", device="cpu")
OTHER = replace(MODEL, fingerprint="e" * 64)
Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Kept:
    """A node of a test: the tokens before it and its own, and its file."""

    identity: Identity
    before: tuple[int, ...]
    tokens: tuple[int, ...]
    digest: str
    data: bytes

    @property
    def text(self) -> tuple[int, ...]:
        return self.before + self.tokens


def kept(
    parent: Kept | None, offset: int, tokens: Sequence[int], *, whole: bool = True,
    identity: Identity = MODEL, tensors: Tensors | None = None, drafted: bool = True,
) -> Kept:  # fmt: skip
    """The node of `tokens` behind the first `offset` of its parent's own."""
    above = parent.digest if parent else identity.digest
    before = parent.before + parent.tokens[:offset] if parent else ()
    said = metadata(
        identity, model="tiny", parent=above, offset=offset, tokens=tokens, drafted=drafted
    )
    if tensors is None:
        tensors = tensors_of(before, tokens, whole=whole)
    data = sealed(save(dict(tensors), said))
    return Kept(identity, before, tuple(tokens), digest_of(above, offset, tokens), data)


def tensors_of(before: Sequence[int], tokens: Sequence[int], *, whole: bool) -> Tensors:
    """What a model of two states and a draft head, whose rows lie one behind, leaves of them."""
    text = [*before, *tokens]
    rows = np.stack([_row(text[: end + 1]) for end in range(len(before), len(text))])
    drafted = rows[0 if before else 1 :]
    pairs = np.stack([rows * (plane + 1) for plane in range(4)]).reshape(2, 2, len(tokens), 3)
    found = {
        "rows.target.0.pairs": pairs, "rows.target.1.hidden": rows.astype(np.float16),
        "rows.draft.0.pairs": drafted.reshape(1, 1, *drafted.shape),
    }  # fmt: skip
    aside = {"beside.target.2.state": _row(text) + 0.5, "passed.logits": _row(text) - 0.5}
    return found | aside if whole else found


def _row(text: Sequence[int]) -> np.ndarray:
    """Three numbers [3] that say which tokens came so far."""
    said = hashlib.sha256(repr(list(text)).encode()).digest()
    return np.frombuffer(said[:3], np.uint8).astype(np.float32)


def put(*nodes: Kept) -> VaultFolder:
    """The vault with these nodes."""
    vault = VaultFolder(paths.snapshots_dir())
    for node in nodes:
        vault.write(node.identity.digest, node.digest, node.data)
    return vault


def files() -> dict[str, bytes]:
    """What the vault has, by the digest."""
    vault = VaultFolder(paths.snapshots_dir())
    return {entry.digest: entry.path.read_bytes() for entry in vault.entries()}


def said(name: str, *ends: tuple[Kept, int]) -> Path:
    """A session of one message to which each of these is an answer: the node that holds its end,
    and how many tokens end there."""
    header = new_header(
        model=None, model_name="tiny", sampling=Sampling(), speculation=Speculation(), system=None
    )
    writer = store.create(name, "", header)
    ask = Turn(id=names.new_id(), parent=None, role="user", text="Hi", started_at=1.7e9)
    writer.user(ask)
    for node, context in ends:
        turn = Turn(
            id=names.new_id(), parent=ask.id, role="assistant", text="", started_at=1.7e9
        )  # fmt: skip
        usage = Usage(
            prompt_tokens=1, restored_tokens=0, completion_tokens=context - 1, context=context
        )
        ended = replace(Finished.unplayed(turn.id, "stop"), text="Hello", snapshot=node.digest)
        turn.finish(replace(ended, usage=usage))
        writer.finish(turn, "")
    writer.close()
    return writer.path
