"""What all chats with one system prompt begin with is a node of its own: others go on from there,
and no node has words of a user beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.protocol import Finished, Message, Sampling, Started
from flarechat.sessions import store
from flarechat.sessions.session import SessionWriter
from flarechat.sessions.turns import Turn
from flarechat.vault.folder import VaultFolder
from flarechat.vault.nodefile import SUFFIX, read_header
from tests.engine.conftest import Desk
from tests.engine.qwen38.test_end_to_end import fresh_desk
from tests.engine.restoring import emptied, with_vault
from tests.sessions.saving import saved

SYSTEM = "You are terse, and you like cats more than dogs."
WORDS = ("abc is what I say", "xyz is what I say", "abc is what I mean")
LAW = Sampling(temperature=1.0, top_k=20, seed=3)
LONG = 10.0


def chat(
    desk: Desk, words: str, *, system: str = SYSTEM, private: bool = False
) -> tuple[Started, Finished]:
    asked = replace(
        desk.request("", sampling=LAW, max_tokens=6, private=private),
        messages=(Message(role="system", content=system), Message(role="user", content=words)),
    )
    finished, _ = desk.answer(asked)
    return next(event for event in desk.of(asked.id) if isinstance(event, Started)), finished


def opening(desk: Desk) -> int:
    """What two prompts share whose users say something else: by the prompts alone."""
    prompts = [
        desk.engine.language.encode_chat(
            (Message(role="system", content=SYSTEM), Message(role="user", content=words)), True
        )
        for words in WORDS[:2]
    ]
    return next(n for n, (one, two) in enumerate(zip(*prompts, strict=False)) if one != two)


def test_a_recurrent_model_goes_on_from_the_opening_of_another_chat(tmp_path: Path) -> None:
    one, two = (fresh_desk("bf16", prefix_cache=64) for _ in range(2))
    plain = fresh_desk("bf16", prefix_cache=0)
    with_vault(one, tmp_path)
    chat(one, WORDS[0])
    assert one.engine.close(LONG)
    with_vault(two, tmp_path)
    told, finished = chat(two, WORDS[1])

    assert (opening(two), "disk") == (told.restored_tokens, told.restored_from)
    assert chat(plain, WORDS[1])[1].text == finished.text


@pytest.mark.parametrize("private", [False, True], ids=["public first", "private first"])
def test_no_node_has_words_beside_the_opening_and_rm_leaves_none(
    private: bool, desk: Callable[..., Desk]
) -> None:
    made, root = desk(prefix_cache=64), paths.snapshots_dir()
    with_vault(emptied(made), root)
    if private:
        # Its slot has more than the opening, and no node has any of it.
        chat(made, WORDS[2], private=True)
        tree = made.engine.bookings.keeper.tree
        tree.resize(0)
        tree.resize(64 << 20)
    ended = [chat(made, words)[1] for words in WORDS[:2]]
    assert made.engine.close(LONG)
    length = opening(made)
    starts = {entry.digest: start(entry.path) for entry in VaultFolder(root).entries()}

    assert length > 10
    assert length in {end for _, end in starts.values()}
    assert [] == [(a, b) for a, b in starts.values() if a < length < b]

    first, second = (naming(name, one) for name, one in zip(("one", "two"), ended, strict=True))
    assert 0 == store.remove(first).left
    prompts = [
        made.engine.language.encode_chat(
            (Message(role="system", content=SYSTEM), Message(role="user", content=words)), True
        )
        for words in WORDS[:2]
    ]
    kept = [entry.path.read_bytes() for entry in VaultFolder(root).entries()]
    hidden = next(
        pair for pair in pairwise(prompts[0][length:]) if pair not in set(pairwise(prompts[1]))
    )
    assert any(spelled(prompts[1][length : length + 3]) in data for data in kept)
    assert not any(spelled(hidden) in data for data in kept)
    store.remove(second)
    assert [] == VaultFolder(root).entries()


def spelled(tokens: object) -> bytes:
    return ",".join(map(str, tokens)).encode()  # type: ignore[call-overload]


def start(path: Path) -> tuple[int, int]:
    """Where a node's own tokens begin and end."""
    header = read_header(path)
    begin = 0 if header.first else start(path.with_name(header.parent + SUFFIX))[0] + header.offset
    return begin, begin + len(header.tokens)


def naming(name: str, finished: Finished) -> Path:
    """A session with this answer."""
    path = saved(name, "Hi")
    writer, session = SessionWriter.open(path)
    turn = Turn(id=finished.request, parent=session.tree.head, role="assistant", text="")
    turn.finish(finished)
    writer.finish(turn, "")
    writer.close()
    return path
