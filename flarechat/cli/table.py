"""Plain tables and quantities for lists on stdout. Knows nothing of what it prints."""

from __future__ import annotations

from collections.abc import Sequence

from flarechat.textsafe import strip_controls


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as their longest cell; the last one is not padded."""
    cells = [[strip_controls(cell).replace("\n", " ") for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(padded).rstrip())


def age(seconds: float) -> str:
    """How long ago, in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


def size(count: float) -> str:
    """A number of bytes, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def counted(count: int, what: str) -> str:
    """A number of things, in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
