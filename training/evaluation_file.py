"""acceptance.json of a run: what `evaluate` found, for the sidecar's record and the docs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.conversations import Conversations
from training.evaluate import Acceptance

NAME = "acceptance.json"


def write(run: Path, found: Sequence[Acceptance], talk: Conversations) -> None:
    """Write the acceptance by law."""
    rows = [
        {**asdict(one), "accepted": {str(k): round(one.accepted(k), 4) for k in (1, 3, 5, 7)}}
        for one in found
    ]
    facts = {"conversations": len(talk.tokens), "laws": _rounded(rows)}
    (run / NAME).write_text(json.dumps(facts, indent=1))


def read(run: Path) -> Any:
    """The file's content, or None before `evaluate`."""
    path = run / NAME
    return json.loads(path.read_text()) if path.exists() else None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
