"""kill -9 at any moment, while nodes are written, used, trimmed and cleared: every node that is
left can be restored, and nothing else is there but writes that were cut off.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from flarechat.vault.folder import VaultFolder

MOMENTS = 200


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork and no SIGKILL")
def test_at_none_of_200_moments_is_anything_left_that_cannot_be_used(tmp_path: Path) -> None:
    chance, vault = random.Random(0), VaultFolder(tmp_path / "snapshots")
    found, left_over = 0, 0
    killer = subprocess.Popen(
        [sys.executable, "-m", "tests.vault.killed", str(vault.root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with killer:
        assert killer.stdin and killer.stdout
        for moment in range(MOMENTS):
            killer.stdin.write(f"{moment} {chance.random() * 0.02:.6f}\n")
            killer.stdin.flush()
            assert "9\n" == killer.stdout.readline()
            findings = vault.verify()
            assert [] == [finding for finding in findings if not finding.harmless]
            left_over += len(findings)
            found += len(vault.entries())
        killer.communicate()
    vault.sweep()

    assert [] == vault.verify()
    assert found > MOMENTS and left_over > MOMENTS / 10
