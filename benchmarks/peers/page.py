"""The page docs/cpu.md: its tables, made from what a comparison left.

    python -m benchmarks.peers.page RUN.json [RUN.json …]

Owns the lines between the page's markers. Prose is written by hand, figures never: a table lies
between `<!-- table: NAME -->` and `<!-- end -->` and is made by `tables`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.h200.page import filled
from benchmarks.h200.rows import load
from benchmarks.peers.tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "cpu.md"


def main(given: Sequence[str] | None = None) -> int:
    """Make the tables anew."""
    made = argparse.ArgumentParser("page", description=(__doc__ or "").splitlines()[0])
    made.add_argument("runs", nargs="+", type=Path, help="JSON files of benchmarks.peers.compare")
    made.add_argument("--page", type=Path, default=PAGE)
    asked = made.parse_args(given)
    page = filled(asked.page.read_text("utf-8"), load(asked.runs), TABLES)
    asked.page.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
