"""What goes into a digest: all that state depends on, and nothing that could be read two ways."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from flarechat.vault.identity import Identity, digest_of
from tests.vault.nodes import IDENTITY


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Identity)])
def test_every_field_of_an_identity_counts(field: str) -> None:
    other = 2 if field == "layout" else "other"
    changed = dataclasses.replace(IDENTITY, **{field: other})

    assert IDENTITY.digest != changed.digest
    assert 64 == len(changed.digest)


def test_an_identity_cannot_be_written_in_two_ways() -> None:
    texts = ("a\0b", "c", "", "")
    moved = ("a", "b\0c", "", "")
    names = ("recipe", "fingerprint", "dtype", "device")
    one, two = (Identity(**dict(zip(names, t, strict=True))) for t in (texts, moved))

    assert one.digest != two.digest


def test_an_identity_names_the_same_folder_in_every_release() -> None:
    assert hashlib.sha256(b'["llama", "ab12|", "float32", "cpu", 1]').hexdigest() == IDENTITY.digest


def test_a_node_is_named_by_what_it_hangs_on_the_place_and_the_tokens() -> None:
    parent = "0a" * 32
    numbers = b"".join(n.to_bytes(8, "little") for n in (3, 7, 70_000))

    assert (
        hashlib.sha256(bytes.fromhex(parent) + numbers).hexdigest()
        == digest_of(parent, 3, [7, 70_000])
        != digest_of(parent, 7, [3, 70_000])
    )
