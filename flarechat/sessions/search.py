"""Finds sessions by the words in them: names, titles and the turns of every branch.

Owns what a query means: every word must be in one turn, `"some words"` are a phrase, `wor*` begins
a word, case and accents do not count, everything else that is typed is no more than words, and
what has neither letter nor digit is passed over.
"""

from __future__ import annotations

import os
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from flarechat import paths
from flarechat.sessions import index, names
from flarechat.textsafe import strip_controls, well_formed

_TERM = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')
_OPEN, _CLOSE = "\x02", "\x03"
_SNIPPET_WORDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A session that was found, and the first place in it where all words are.

    `role` is user, assistant or title; `turn` the turn's id, empty for a title. `snippet` is one
    line without control characters, `marks` are the ranges of it that matched, as (first, end).
    `places` counts the turns, title included, that have all words.
    """

    name: str
    path: Path
    id: str
    title: str
    changed: float
    turn: str
    role: str
    snippet: str
    marks: tuple[tuple[int, int], ...]
    places: int


def find(query: str, limit: int = 20, *, typing: bool = False) -> list[Hit]:
    """At most `limit` sessions in which the query is found, the last changed first.

    With `typing` the last word may be the beginning of one. A query without a word finds nothing.
    """
    match = _match(query, typing=typing)
    if not match:
        return []
    with index.opened().refreshed() as table:
        return _hits(table, match, limit)


def _hits(table: sqlite3.Connection, match: str, limit: int) -> list[Hit]:
    """What an FTS5 query finds, one hit a session."""
    places: dict[int, list[int]] = {}
    for (row,) in table.execute("SELECT rowid FROM texts WHERE texts MATCH ?", (match,)):
        places.setdefault(row >> index.PLACES, []).append(row)
    files = {
        number: (os.fsdecode(name), *about)
        for number, name, *about in table.execute(
            "SELECT number, name, mtime, session, title FROM files"
        )
    }
    hits = []
    for number in sorted(places, key=lambda n: (-files[n][1], files[n][0]))[:limit]:
        name, mtime, session, title = files[number]
        turn, role, marked = table.execute(
            "SELECT turn, role, snippet(texts, 0, ?, ?, '…', ?) FROM texts"
            " WHERE texts MATCH ? AND rowid = ?",
            (_OPEN, _CLOSE, _SNIPPET_WORDS, match, min(places[number])),
        ).fetchone()
        snippet, marks = _unmarked(" ".join(marked.split()))
        hits.append(
            Hit(
                name=name,
                path=paths.sessions_dir() / (name + names.SUFFIX),
                id=session,
                title=title,
                changed=mtime / 1e9,
                turn=turn,
                role=role,
                snippet=snippet,
                marks=marks,
                places=len(places[number]),
            )
        )
    return hits


def _match(query: str, *, typing: bool) -> str:
    """The query in the words of FTS5: quoted strings that must all match, empty for none."""
    terms = []
    for phrase, star, word in _TERM.findall(well_formed(strip_controls(query))):
        text = phrase or word.rstrip("*")
        # FTS5 finds nothing where one of the terms has no word in it.
        if any(map(str.isalnum, text)):
            terms.append((text, bool(star) or word.endswith("*")))
    if terms and typing and query[-1:].isalnum():
        terms[-1] = (terms[-1][0], True)
    return " AND ".join(f'"{text}"*' if begins else f'"{text}"' for text, begins in terms)


def _unmarked(marked: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A snippet without its marks, and where they were."""
    text, marks = "", []
    for piece in re.split(f"({_OPEN}[^{_CLOSE}]*{_CLOSE})", marked):
        plain = piece.strip(_OPEN + _CLOSE)
        if piece.startswith(_OPEN):
            marks.append((len(text), len(text) + len(plain)))
        text += plain
    return text, tuple(marks)
