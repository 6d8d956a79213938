"""Whose state a snapshot is, and the digests by which snapshots are named.

Owns what goes into a digest. Nodes are chained: a node's digest holds that of its parent, and the
first ones' parent is the digest of their identity.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

# Changes whenever tensors of the same names mean something else, and with any change of what
# computes them that does more to the numbers than rounding. Kernels and torch's version are not in
# an identity: no text was found that they change, and state of an earlier release stays of use.
LAYOUT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose state it is: nodes of one identity can follow one another, and no others.

    `recipe` is the model family, `fingerprint` the weights' (and the draft head's, if one is
    loaded), `dtype` how it is computed and `device` where, "cpu" or "cuda".
    """

    recipe: str
    fingerprint: str
    dtype: str
    device: str
    layout: int = LAYOUT

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal digits."""
        fields = [self.recipe, self.fingerprint, self.dtype, self.device, self.layout]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def digest_of(parent: str, offset: int, tokens: Sequence[int]) -> str:
    """SHA-256 of a node: its parent's digest, then the offset and the tokens as little-endian
    integers of 8 bytes."""
    numbers = struct.pack(f"<{1 + len(tokens)}q", offset, *tokens)
    return hashlib.sha256(bytes.fromhex(parent) + numbers).hexdigest()
