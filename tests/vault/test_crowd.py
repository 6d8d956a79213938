"""Three processes write, use, trim, clear and judge one vault at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from flarechat.vault.folder import VaultFolder

ROUNDS = 25

MEMBER = """
import random, sys
from pathlib import Path
from flarechat.vault.folder import VaultFolder
from flarechat.vault.nodefile import Damaged, Unreadable, read_whole
from tests.vault.nodes import ALIEN, IDENTITY, made

draw, vault = random.Random(int(sys.argv[2])), VaultFolder(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for count in range(int(sys.argv[3])):
    path = []
    for depth in range(draw.randint(1, 3)):
        node = made([draw.randrange(3)], path[-1] if path else None,
                    identity=path[-1].identity if path else draw.choice((IDENTITY, ALIEN)))
        behind = [vault.place(n.identity.digest, n.digest) for n in path]
        if not vault.write(node.identity.digest, node.digest, node.data, behind):
            break
        path.append(node)
    if not path:
        continue
    vault.touch([vault.place(n.identity.digest, n.digest) for n in reversed(path)])
    for entry in vault.entries():
        try:
            read_whole(entry.path)
        except Unreadable:
            pass
    vault.paths_of(None, [path[-1].digest])
    match draw.randrange(6):
        case 0:
            vault.trim(draw.randrange(20_000))
        case 1:
            vault.clear(draw.choice((None, IDENTITY.digest)))
        case 2:
            seen = {finding.what for finding in vault.verify()}
            assert seen <= {"what it hangs on is missing", "leftover, harmless"}, seen
"""


def test_nobody_is_in_the_way_of_another_and_what_is_left_is_sound(tmp_path: Path) -> None:
    root = tmp_path / "snapshots"
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(root), str(seed), str(ROUNDS)],
            cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for seed in range(3)
    ]  # fmt: skip
    for member in members:
        assert member.stdout is not None
        assert "ready\n" == member.stdout.readline()
    errors = [member.communicate("\n", timeout=120)[1] for member in members]

    assert ["", "", ""] == errors

    vault = VaultFolder(root)
    assert [] == vault.verify()
    vault.clear()
    assert [] == list(root.iterdir())
