"""The C sources of the CPU kernels, and the digest by which a library says what it was made of.

Imports nothing of flarechat: the package's build runs this file by itself.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent / "csrc"
LIBRARY = "libflarechat.so"


def digest(folder: Path = FOLDER) -> str:
    """Hexadecimal digits that change with the name or content of any source or header."""
    made = hashlib.sha256()
    for path in sorted(folder.glob("*.[ch]")):
        made.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return made.hexdigest()[:16]
