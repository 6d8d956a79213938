"""Writers of a vault to be killed: `python -m tests.vault.killed ROOT` forks one for every line it
is given, which says a seed and how many seconds to leave it, and prints a line once it is dead.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from flarechat.vault.folder import VaultFolder
from tests.vault.nodes import Made, made

Branches = list[tuple[Made, "Branches"]]


def grown(depth: int = 3, after: Made | None = None) -> Branches:
    """Two nodes that hang on each, so deep."""
    nodes = [made([n, n], after, extra=50_000) for n in range(2)] if depth else []
    return [(node, grown(depth - 1, node)) for node in nodes]


def work(vault: VaultFolder, chance: random.Random, branches: Branches) -> None:
    """Write paths, use them, trim and clear, without an end."""
    while True:
        paths, below = list[Path](), branches
        while below and chance.random() < 0.9:
            node, below = chance.choice(below)
            owner = node.identity.digest
            if not vault.write(owner, node.digest, node.data, paths):
                break
            paths.append(vault.place(owner, node.digest))
        vault.touch(reversed(paths))
        match chance.randrange(20):
            case 0 | 1:
                vault.trim(chance.randrange(500_000))
            case 2:
                vault.clear()


def main() -> None:
    vault, branches = VaultFolder(Path(sys.argv[1])), grown()
    for line in sys.stdin:
        seed, seconds = line.split()
        child = os.fork()
        if child == 0:
            try:
                work(vault, random.Random(int(seed)), branches)
            finally:
                os._exit(1)
        time.sleep(float(seconds))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status), flush=True)


if __name__ == "__main__":
    main()
