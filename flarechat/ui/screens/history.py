"""Earlier prompts, the last one first: type to search, enter takes one into the prompt."""

from __future__ import annotations

from flarechat.ui.screens.picker import Item, Picker


class HistoryScreen(Picker):
    """Returns the chosen prompt, or None."""

    TITLE_TEXT = "Earlier prompts"
    EMPTY_TEXT = "No earlier prompt matches."

    def __init__(self, past: list[str]) -> None:
        super().__init__()
        self._past = past

    def items(self) -> list[Item]:
        newest = dict.fromkeys(reversed(self._past))
        return [Item(text, " ".join(text.split()), text) for text in newest]
