"""Ten thousand spoilt node files: each is refused in words, or is what was written, to the bit."""

from __future__ import annotations

import json
import random
from typing import Any

import safetensors

from flarechat.vault.nodefile import Damaged, parsed, sealed
from tests.vault.nodes import ALIEN, Made, joined, made, split

FIRST = made([1, 2])
NODES = (FIRST, made([3, 4, 5], FIRST), made([9], identity=ALIEN, model="q"))
RANDOM = 10_000
RESEALED = 5_000


def judged(data: bytes, node: Made) -> bool:
    """Whether the bytes are taken for the file of this node; nothing but Damaged is raised."""
    try:
        parsed(data, node.digest, node.identity.digest)
    except Damaged as error:
        assert error.reason and error.reason[0].islower()
        return False
    return True


def test_one_changed_bit_anywhere_and_every_cut_is_seen() -> None:
    node = NODES[1]
    bits = random.Random(1)
    for at in range(len(node.data)):
        changed = bytearray(node.data)
        changed[at] ^= 1 << bits.randrange(8)

        assert not judged(bytes(changed), node), at
        assert not judged(node.data[:at], node), at
    for more in (b"\0", b" ", node.data):
        assert not judged(node.data + more, node)
        assert not judged(more + node.data, node)
    assert judged(node.data, node)


def spoilt(draw: random.Random) -> bytes:
    """A few random pieces of files put over, into, or out of one."""
    data = bytearray(draw.choice(NODES).data)
    for _ in range(draw.randint(1, 3)):
        source = draw.choice(NODES).data
        start = draw.randrange(len(source))
        piece = source[start : start + draw.choice((1, 2, 8, 64, 400))]
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0:
                data[at : at + len(piece)] = piece
            case 1:
                data[at:at] = piece
            case 2:
                del data[at : at + len(piece)]
            case 3:
                data[at : at + len(piece)] = draw.randbytes(len(piece))
            case 4:
                data[at : at + len(piece)] = bytes(len(piece))
            case _:
                data[:] = data[:at] + source[min(at, len(source)) :]
    return bytes(data)


def test_no_splice_of_files_is_taken_for_another_than_it_is() -> None:
    draw, taken = random.Random(2), 0
    for _ in range(RANDOM):
        data, node = spoilt(draw), draw.choice(NODES)
        if judged(data, node):
            taken += 1
            assert node.data == data

    assert 0 < taken < RANDOM / 10


VALUES = (
    None, True, 0, -1, 1.5, 1 << 70, "", "1", "x", "\0", "[1,2]", "[[", [], [0, 8], [[]], {}, "F32",
    "0" * 64, {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}, "U8", [2], [2, 2], "true",
)  # fmt: skip


def changed_within(value: Any, draw: random.Random) -> Any:
    """The same JSON, with another value, or one more or less, somewhere in it."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        match draw.randrange(8):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return value | {draw.choice(("x", "model", "a" * 9)): draw.choice(VALUES)}
            case _:
                return value | {key: changed_within(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        return [*value[:at], changed_within(value[at], draw), *value[at + 1 :]]
    if isinstance(value, str) and value and draw.random() < 0.3:
        at = draw.randrange(len(value))
        return value[:at] + draw.choice('0aF1[]{}",\\\x07é') + value[at + 1 :]
    return draw.choice(VALUES)


def test_a_forged_file_with_a_right_checksum_holds_what_its_header_says_or_is_refused() -> None:
    """Whoever forges a file can seal it. What is taken then, safetensors' own reader reads too,
    and finds the same in it."""
    draw, taken = random.Random(3), 0
    for _ in range(RESEALED):
        node = draw.choice(NODES)
        head, body = split(node.data)
        changed = changed_within(head, draw)
        body = draw.choice((body, body, draw.randbytes(len(body)), body[:-4], body + bytes(4)))
        text = json.dumps(changed, separators=(",", ":"), ensure_ascii=draw.random() < 0.5)
        data = joined(text.encode("utf-8", "surrogatepass"), body)
        try:
            data = sealed(data)
        except Damaged:
            assert not judged(data, node)
            continue
        if not judged(data, node):
            continue
        taken += 1
        header = parsed(data, node.digest, node.identity.digest)
        found = {name: (t["dtype"], tuple(t["shape"])) for name, t in safetensors.deserialize(data)}
        sizes = sum(len(t["data"]) for _, t in safetensors.deserialize(data))
        assert (found, sizes) == (header.tensors, header.nbytes)
        assert (node.parent, node.offset, node.tokens) == (
            header.parent, header.offset, header.tokens
        )  # fmt: skip

    assert 30 < taken < RESEALED / 2
