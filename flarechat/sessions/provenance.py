"""Where the tokens of an answer came from, a letter each, and how that is written down.

Owns the letters, the runs of copied tokens and their fields in a session's lines. Knows no file and
no engine; of a field that makes no sense nothing is taken, and the answer's text does without.

    tokens    every generated token, the terminal one included
    sources   a letter for each: m mtp, h history (another answer, or an earlier one), c context,
              g grammar, - correction (the first behind a refused draft), + bonus or plain sample,
              ? not known (text of another model that was taken up)
    copied    runs of copied tokens [first, count, turn]: `turn` is the answer they were copied
              from, "" where they are of the request's own context
    sampling, seed, draw    the law as it was asked for, the seed that was used (by the last part
              of an answer that went on), and the tokens before the first that was drawn
    model_fingerprint       the model whose tokens these are
    snapshot  of a whole answer, the digest of the snapshot on disk with the state at its end, ""
              where none was kept
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flarechat.errors import SettingsError
from flarechat.protocol import Round, Sampling, from_dict

if TYPE_CHECKING:
    from flarechat.sessions.turns import Turn

LETTERS = {
    "mtp": "m",
    "history": "h",
    "context": "c",
    "grammar": "g",
    "correction": "-",
    "bonus": "+",
}
UNKNOWN = "?"
_DIGEST = re.compile(r"[0-9a-f]{64}")
COPIES = frozenset((LETTERS["history"], LETTERS["context"]))

# The first token's index, how many, and the turn they were copied from.
Run = tuple[int, int, str]


def add_round(turn: Turn, played: Round) -> None:
    """Add the tokens of a round to an answer."""
    letters = "".join(LETTERS.get(source, UNKNOWN) for source in played.sources)
    for place, letter in enumerate(letters, start=len(turn.tokens)):
        if letter in COPIES:
            origin = played.origin if letter == LETTERS["history"] else ""
            _add(turn.copied, (place, 1, origin))
    turn.tokens += played.tokens
    turn.sources += letters


def _add(runs: list[Run], run: Run) -> None:
    """Put a run behind the others; one that goes on from the last makes it longer."""
    first, count, origin = run
    if runs and (sum(runs[-1][:2]), runs[-1][2]) == (first, origin):
        runs[-1] = (runs[-1][0], runs[-1][1] + count, origin)
    else:
        runs.append(run)


def token_fields(turn: Turn, since: int = 0) -> dict[str, Any]:
    """The fields of a turn's tokens from number `since` on."""
    if not turn.tokens:
        return {}
    runs = ((max(first, since), first + count, origin) for first, count, origin in turn.copied)
    return {
        **({"since": since} if since else {}),
        "tokens": turn.tokens[since:],
        "sources": turn.sources[since:],
        "copied": [[first, end - first, origin] for first, end, origin in runs if first < end],
    }


def law_fields(turn: Turn) -> dict[str, Any]:
    """The fields of the law that a turn's tokens are drawn by, as far as it is known."""
    fields = {
        "sampling": asdict(turn.sampling) if turn.sampling else None,
        "seed": turn.seed,
        "draw": turn.draw,
        "model_fingerprint": turn.model_fingerprint or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def take_tokens(turn: Turn, record: dict[str, Any]) -> None:
    """Take a record's tokens behind those that the turn has before them; without any, or with
    fields that make no sense, the turn has none."""
    since, tokens = record.get("since", 0), record.get("tokens", [])
    sources, copied = record.get("sources", ""), record.get("copied", [])
    if not _whole(since) or since > len(turn.tokens) or not _tokens(tokens, sources):
        since, tokens, sources, copied = 0, [], "", []
    runs = _runs(copied, since, since + len(tokens))
    turn.copied = [(a, min(n, since - a), origin) for a, n, origin in turn.copied if a < since]
    turn.tokens = turn.tokens[:since] + tokens
    turn.sources = turn.sources[:since] + sources
    for run in runs:
        _add(turn.copied, run)


def take_law(turn: Turn, record: dict[str, Any]) -> None:
    """Take the law of a record, where it has one."""
    if isinstance(record.get("sampling"), dict):
        try:
            turn.sampling = from_dict(Sampling, record["sampling"])
        except (TypeError, SettingsError):
            turn.sampling = None
    turn.seed = record["seed"] if _whole(record.get("seed")) else turn.seed
    turn.draw = record["draw"] if _whole(record.get("draw")) else turn.draw
    if isinstance(record.get("model_fingerprint"), str):
        turn.model_fingerprint = record["model_fingerprint"]


def snapshot_of(record: dict[str, Any]) -> str:
    """The digest of a record's snapshot; "" for anything else."""
    digest = record.get("snapshot")
    return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else ""


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _tokens(tokens: Any, sources: Any) -> bool:
    fits = isinstance(tokens, list) and all(map(_whole, tokens))
    return fits and isinstance(sources, str) and len(sources) == len(tokens)


def _runs(copied: Any, first: int, end: int) -> Sequence[Run]:
    """The runs of a record that lie within its tokens, in order."""
    runs: list[Run] = []
    for run in copied if isinstance(copied, list) else ():
        if not isinstance(run, list) or len(run) != 3:
            return []
        at, count, origin = run
        if not (_whole(at) and _whole(count) and isinstance(origin, str)):
            return []
        if not (first <= at and 0 < count and at + count <= end):
            return []
        runs.append((at, count, origin))
        first = at + count
    return runs
