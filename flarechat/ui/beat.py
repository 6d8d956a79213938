"""What one look at the engine changed, and how often to look."""

from __future__ import annotations

from dataclasses import dataclass, field

from flarechat.chat import Turn


def joined(*texts: str) -> str:
    """The texts that are not empty as one, a blank line between."""
    return "\n\n".join(text for text in texts if text)


@dataclass(slots=True)
class Beat:
    """What one pump changed: turns that grew or ended, turns that are new, remarks, texts."""

    touched: list[Turn] = field(default_factory=list)
    added: list[Turn] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    returned: str = ""

    def touch(self, *turns: Turn) -> None:
        """Note turns that grew or ended, each once."""
        self.touched += [turn for turn in turns if turn not in self.touched]

    def add(self, later: Beat) -> None:
        """Take in what changed after this, to be drawn at once."""
        self.touch(*later.touched)
        self.added += later.added
        self.remarks += later.remarks
        self.returned = joined(self.returned, later.returned)

    @property
    def empty(self) -> bool:
        """Whether nothing changed."""
        return not (self.touched or self.added or self.remarks or self.returned)


class Pace:
    """How often to look: slower after an expensive look, faster again when looks are cheap."""

    BUDGET, SLOWEST = 0.05, 0.5

    def __init__(self, base: float) -> None:
        self.base = self.interval = base

    def after(self, spent: float) -> float:
        """The interval to the next look, given what the last one cost."""
        if spent > self.BUDGET:
            self.interval = min(self.interval * 2, self.SLOWEST)
        elif spent < self.BUDGET / 2:
            self.interval = max(self.interval / 2, self.base)
        return self.interval
