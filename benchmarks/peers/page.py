"""The page docs/cpu.md: its tables, made from what a comparison left.

    python -m benchmarks.peers.page RUN.json [RUN.json …]

Owns the lines between the page's markers. Prose is written by hand, figures never: a table lies
between `<!-- table: NAME -->` and `<!-- end -->` and is made by `tables`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.h200.page import MISSING, markdown
from benchmarks.h200.rows import Data, load
from benchmarks.peers.tables import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "cpu.md"
_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, data: Data) -> str:
    """The page with every marked table made anew; an unknown name is a ValueError."""

    def block(found: re.Match[str]) -> str:
        if found[2] not in TABLES:
            raise ValueError(f"the page asks for a table {found[2]!r}; there is none of that name")
        shown = TABLES[found[2]](data)
        return f"{found[1]}{markdown(shown) if shown else MISSING}\n{found[3]}"

    return _BLOCK.sub(block, page)


def main(given: Sequence[str] | None = None) -> int:
    """Make the tables anew."""
    made = argparse.ArgumentParser("page", description=(__doc__ or "").splitlines()[0])
    made.add_argument("runs", nargs="+", type=Path, help="JSON files of benchmarks.peers.compare")
    made.add_argument("--page", type=Path, default=PAGE)
    asked = made.parse_args(given)
    asked.page.write_text(filled(asked.page.read_text("utf-8"), load(asked.runs)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
