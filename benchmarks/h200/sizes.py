"""How much a run measures: everything, or just enough to show that the script works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Counts of a run. `contexts` maps names to prompt tokens, 0 for the bare question; `seconds`
    are the boxes of the sections, in the order in which they run."""

    tokens: int = 256
    questions: int = 5
    repeats: int = 3
    contexts: Mapping[str, int] = field(
        default_factory=lambda: {"short": 0, "1K": 1000, "8K": 7800}
    )
    lanes: tuple[int, ...] = (1, 2, 4)
    equality_tokens: int = 128
    equality_questions: int = 6
    replays: int = 16
    passes: int = 20
    steady_rounds: int = 1000
    peer_tokens: int = 256
    copy_bytes: int = 2 << 30
    peer_repeats: int = 2
    seconds: Mapping[str, float] = field(
        default_factory=lambda: {
            "equality": 300,
            "service": 60,
            "memory": 45,
            "speed": 280,
            "lanes": 60,
            "transformers": 240,
            "floor": 70,
        }
    )


FULL = Sizes()
DRY = Sizes(
    tokens=9,
    questions=1,
    repeats=1,
    contexts={"short": 0, "1K": 400},
    lanes=(1, 2),
    equality_tokens=6,
    equality_questions=1,
    replays=2,
    passes=2,
    steady_rounds=8,
    peer_tokens=6,
    peer_repeats=1,
    copy_bytes=1 << 20,
    seconds=dict.fromkeys(FULL.seconds, 30.0),
)
