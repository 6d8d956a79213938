"""Facts that widgets post and the chat screen acts on. Named in the past tense; they carry data,
never behaviour.
"""

from __future__ import annotations

from textual.message import Message


class PromptSubmitted(Message):
    """The user sent a prompt; large pastes are already spelled out."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class CopyAsked(Message):
    """Text was chosen for the clipboard; `what` names it in the confirmation."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__()
        self.text, self.what = text, what


class Remarked(Message):
    """A widget has one sentence for the user."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class PromptWanted(Message):
    """Turn mode was left."""


class FollowAsked(Message):
    """End was pressed at the end of the prompt."""


class QuitAsked(Message):
    """Quit was pressed on an empty prompt."""
