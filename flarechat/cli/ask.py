"""A question before something is lost. Asks on stderr, so that stdout stays data."""

from __future__ import annotations

import sys

from flarechat.errors import UsageError


def confirmed(question: str) -> bool:
    """Whether the user said yes; no answer at all is refused."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer:
        print(file=sys.stderr)
        raise UsageError("Nobody answered, so nothing was deleted.", "Give --yes to not be asked.")
    return answer.strip().lower() in ("y", "yes")
