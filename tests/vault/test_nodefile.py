"""The form of a snapshot's file: what comes back, and everything that is refused, and why."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from flarechat.vault.nodefile import (
    MOST_HEADER_BYTES,
    MOST_TOKENS,
    SUFFIX,
    Damaged,
    Unreadable,
    metadata,
    parsed,
    read_header,
    read_whole,
    sealed,
)
from tests.vault.nodes import ALIEN, IDENTITY, joined, made, split

NODE = made([5, 6, 7], made([1, 2, 3, 4]), 2, drafted=False)
EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
FOUR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def test_safetensors_reads_what_was_sealed_and_the_checksum_is_over_zeros(tmp_path: Path) -> None:
    path = NODE.put(tmp_path)
    with safe_open(path, framework="np") as file:
        said, found = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}

    assert set(NODE.tensors) == set(found)
    assert all(np.array_equal(NODE.tensors[name], found[name]) for name in found)
    assert 1 == NODE.data.count(said["sha256"].encode())

    zeroed = NODE.data.replace(said["sha256"].encode(), b"0" * 64)
    assert hashlib.sha256(zeroed).hexdigest() == said["sha256"]


def test_every_field_comes_back_from_the_beginning_of_a_file_and_from_all_of_it(
    tmp_path: Path,
) -> None:
    path = NODE.put(tmp_path)
    header, data = read_whole(path)

    assert NODE.data == data
    assert header == read_header(path) == parsed(data, NODE.digest, IDENTITY.digest)
    assert header == read_whole(path, NODE.digest)[0]
    assert (IDENTITY, "smol") == (header.identity, header.model)
    assert (NODE.parent, 2, (5, 6, 7)) == (header.parent, header.offset, header.tokens)
    assert (False, NODE.digest, False) == (header.drafted, header.digest, header.first)
    assert len(data) == header.size
    assert sum(t.nbytes for t in NODE.tensors.values()) == header.nbytes
    assert ("F16", (2, 3, 4)) == header.tensors["rows.target.0.values"]
    assert {name: t.shape for name, t in NODE.tensors.items()} == {
        name: shape for name, (_, shape) in header.tensors.items()
    }
    assert made([1]).tokens and parsed(made([1]).data, made([1]).digest, IDENTITY.digest).first


def test_a_name_that_looks_like_the_checksum_is_only_a_name() -> None:
    name = 'x","sha256":"' + "0" * 64 + '"'
    node = made([1, 2], model=name)

    assert name == parsed(node.data, node.digest, IDENTITY.digest).model


def test_a_name_that_cannot_be_shown_is_written_as_it_can() -> None:
    said = metadata(
        IDENTITY, model="a\x1b[31m\udc80b", parent=IDENTITY.digest, offset=0, tokens=[1],
        drafted=True,
    )  # fmt: skip

    assert "a[31m?b" == said["model"]


def test_only_the_beginning_of_a_file_is_read_for_its_header(tmp_path: Path) -> None:
    """A file as long as no memory."""
    head, _ = split(made([1]).data)
    table = {"big": {"dtype": "U8", "shape": [1 << 38], "data_offsets": [0, 1 << 38]}}
    data = joined({"__metadata__": head["__metadata__"]} | table, b"")
    path = tmp_path / IDENTITY.digest / (made([1]).digest + SUFFIX)
    path.parent.mkdir()
    path.write_bytes(data)
    os.truncate(path, len(data) + (1 << 38))

    assert 1 << 38 == read_header(path).nbytes


# What is refused. Each file is sound, checksum included, but for the one thing.


def refused(data: bytes, digest: str = NODE.digest, folder: str = IDENTITY.digest) -> str:
    with pytest.raises(Damaged) as caught:
        parsed(data, digest, folder)
    return caught.value.reason


def resealed(head: Any, body: bytes) -> bytes:
    return sealed(joined(head, body))


def with_field(name: str, value: object) -> bytes:
    head, body = split(NODE.data)
    head["__metadata__"][name] = value
    return resealed(head, body) if name != "sha256" else joined(head, body)


def with_table(table: dict[str, Any], body: bytes = b"") -> bytes:
    return resealed({"__metadata__": split(NODE.data)[0]["__metadata__"]} | table, body)


def test_a_file_made_anew_without_a_fault_is_not_refused() -> None:
    head, body = split(NODE.data)

    assert NODE.tokens == parsed(resealed(head, body), NODE.digest, IDENTITY.digest).tokens
    for table, body in (({}, b""), ({"a": EMPTY}, b""), ({"a": FOUR, "b": EMPTY}, b"1234")):
        assert parsed(with_table(table, body), NODE.digest, IDENTITY.digest).tensors.keys() == (
            table.keys()
        )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "its file is cut off"),
        (NODE.data[:7], "its file is cut off"),
        (NODE.data[:100], "its file is cut off"),
        (b"\xff" * 8 + NODE.data[8:], "its file is cut off"),
        ((MOST_HEADER_BYTES + 1).to_bytes(8, "little") + bytes(MOST_HEADER_BYTES + 1),
         "its header is too long"),
        (joined(b"", b""), "its header is not JSON"),
        (joined(b"{]", b""), "its header is not JSON"),
        (joined(b"[]", b""), "its header is not JSON"),
        (joined(b' {"a":1}', b""), "its header is not JSON"),
        (joined(b"\xff{}", b""), "its header is not JSON"),
        (joined('{"é":{}}'.encode("utf-16"), b""), "its header is not JSON"),
        (joined(b'{"a":' * 200_000, b""), "its header is not JSON"),
        (joined(b'{"a":NaN}', b""), "its header is not JSON"),
        (joined(b'{"a":' + b"9" * 5000 + b"}", b""), "its header is not JSON"),
        (joined(b'{"a":{},"a":{}}', b""), "its header is not JSON"),
        (joined({}, b""), "it is not a snapshot"),
        (joined({"__metadata__": []}, b""), "it is not a snapshot"),
        (joined({"__metadata__": {"format": "pt"}}, b""), "it is not a snapshot"),
    ],
    ids=map(str, range(99)),  # Metadata is written in an order that differs between processes.
)  # fmt: skip
def test_what_is_no_snapshot_is_refused(data: bytes, reason: str) -> None:
    assert reason == refused(data)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("format", "flarechat-session", "it is not a snapshot"),
        ("version", "2", "it is of another version"),
        ("version", 1, "it is of another version"),
        ("more", "", "its fields are not those of a snapshot"),
        ("model", 1, "a field in it is no plain text"),
        ("model", "\x1b[31m", "a field in it is no plain text"),
        ("model", "\ud800", "a field in it is no plain text"),
        ("layout", "01", "a number in it is none"),
        ("layout", "-1", "a number in it is none"),
        ("offset", "1.0", "a number in it is none"),
        ("offset", "٣", "a number in it is none"),
        ("offset", "1" + "0" * 9, "a number in it is none"),
        ("parent", "A" * 64, "a digest in it is none"),
        ("parent", "a" * 63, "a digest in it is none"),
        ("drafted", "yes", "it does not say whether drafts can be relied on"),
        ("tokens", "[5,6,7", "its tokens are not numbers"),
        ("tokens", '{"5":6}', "its tokens are not numbers"),
        ("tokens", "[5,6.0]", "its tokens are not numbers"),
        ("tokens", "[5,true]", "its tokens are not numbers"),
        ("tokens", "[NaN]", "its tokens are not numbers"),
        ("tokens", "[-1]", "its tokens are not numbers"),
        ("tokens", "[2147483648]", "its tokens are not numbers"),
        ("tokens", "[" * 100_000, "its tokens are not numbers"),
        ("tokens", "[]", "it has no tokens, or too many"),
        ("tokens", json.dumps([1] * (MOST_TOKENS + 1)), "it has no tokens, or too many"),
        ("tokens", "[5,6,8]", "it holds other tokens than its name says"),
        ("offset", "3", "it holds other tokens than its name says"),
        ("parent", "0" * 64, "it holds other tokens than its name says"),
        ("recipe", "qwen38", "its folder is another model's"),
        ("device", "cuda", "its folder is another model's"),
        ("layout", "2", "its folder is another model's"),
        ("sha256", "0" * 64, "its checksum is wrong"),
        ("sha256", "A" * 64, "a digest in it is none"),
    ],
)
def test_a_field_that_is_not_as_it_should_be_is_refused(
    name: str, value: object, reason: str
) -> None:
    assert reason == refused(with_field(name, value))


@pytest.mark.parametrize("name", sorted(split(NODE.data)[0]["__metadata__"]))
def test_a_field_that_is_missing_is_refused(name: str) -> None:
    head, body = split(NODE.data)
    del head["__metadata__"][name]

    assert refused(joined(head, body)) in (
        "it is not a snapshot", "it is of another version",
        "its fields are not those of a snapshot",
    )  # fmt: skip


def row(**changed: Any) -> dict[str, Any]:
    return {"a": FOUR | changed}


@pytest.mark.parametrize(
    ("table", "body"),
    [
        ({"a": []}, b""),
        ({"a": {"dtype": "F32", "shape": [0]}}, b""),
        (row(more=1), b"1234"),
        (row(dtype="F4"), b"1234"),
        (row(dtype=[]), b"1234"),
        (row(shape={}), b"1234"),
        (row(shape=[True]), b"1234"),
        (row(shape=[-1, -1]), b"1234"),
        (row(shape=[1.0]), b"1234"),
        (row(shape=[1] * 9), b"1234"),
        (row(shape=[1 << 40, 0], data_offsets=[0, 0]), b""),
        (row(shape=[2]), b"1234"),
        (row(data_offsets=[0, 4, 4]), b"1234"),
        (row(data_offsets=[4, 0]), b"1234"),
        (row(data_offsets=[-4, 0]), b"1234"),
        (row(data_offsets=[0, 1 << 62]), b"1234"),
    ],
)
def test_a_table_of_tensors_that_is_wrong_is_refused(table: dict[str, Any], body: bytes) -> None:
    assert "its table of tensors is wrong" == refused(with_table(table, body))


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([[0, 4], [0, 4]], "its tensors overlap or leave gaps"),
        ([[0, 4], [2, 6]], "its tensors overlap or leave gaps"),
        ([[0, 4], [5, 9]], "its tensors overlap or leave gaps"),
        ([[1, 5], [5, 9]], "its tensors overlap or leave gaps"),
        ([[0, 4], [4, 8]], "its file is not as long as its tensors"),
        ([[4, 8], [8, 12]], "its tensors overlap or leave gaps"),
    ],
)
def test_tensors_must_fill_a_file(spans: list[list[int]], reason: str) -> None:
    table = {name: FOUR | {"data_offsets": at} for name, at in zip("ab", spans, strict=True)}

    assert reason == refused(with_table(table, bytes(9)))


def test_a_first_node_begins_at_the_beginning() -> None:
    node = made([1, 2], offset=1)

    assert "it hangs on nothing" == refused(node.data, node.digest)


def test_a_file_under_another_name_or_in_another_folder_is_refused(tmp_path: Path) -> None:
    path = NODE.put(tmp_path)
    renamed = path.rename(path.with_name("0" * 64 + SUFFIX))

    with pytest.raises(Damaged, match="it holds other tokens than its name says"):
        read_header(renamed)
    assert NODE.data == read_whole(renamed, NODE.digest)[1]

    moved = tmp_path / ALIEN.digest / NODE.name
    moved.parent.mkdir()
    renamed.rename(moved)
    for read in (read_header, read_whole):
        with pytest.raises(Damaged, match="its folder is another model's"):
            read(moved)


def test_the_place_of_the_checksum_is_not_a_matter_of_opinion() -> None:
    head, body = split(NODE.data)
    twice = joined(head | {"x": {"sha256": "0" * 64}}, body)
    spaced = joined(json.dumps(head).encode(), body)

    for data in (twice, spaced):
        with pytest.raises(Damaged, match="it has no checksum"):
            sealed(data)
    assert "its table of tensors is wrong" == refused(twice)
    assert "it has no checksum" == refused(spaced)


def test_what_lies_behind_the_header_counts_for_all_of_a_file_alone(tmp_path: Path) -> None:
    path = NODE.put(tmp_path)
    path.write_bytes(NODE.data[:-1] + bytes([NODE.data[-1] ^ 1]))

    assert NODE.tokens == read_header(path).tokens
    with pytest.raises(Damaged, match="its checksum is wrong"):
        read_whole(path)


def test_what_is_not_there_or_not_a_file_is_unreadable_and_nothing_waits_for_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / IDENTITY.digest
    path = folder / NODE.name
    reasons = []
    for prepare in (
        lambda: None,
        folder.mkdir,
        lambda: os.mkfifo(path),
        lambda: (path.unlink(), path.symlink_to(NODE.put(tmp_path / "else"))),
        lambda: (path.unlink(), path.mkdir()),
    ):
        prepare()
        for read in (read_header, read_whole):
            with pytest.raises(Damaged) as caught:
                read(path)
        reasons.append((caught.type, caught.value.reason))

    assert (Unreadable, "its file is missing") == reasons[0] == reasons[1]
    assert (Damaged, "it is not a file") == reasons[2]
    assert Unreadable is reasons[3][0] is reasons[4][0]
    assert all(reason.startswith("its file cannot be read: ") for _, reason in reasons[3:])
