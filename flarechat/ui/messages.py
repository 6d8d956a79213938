"""Facts that widgets post and the chat screen acts on. Named in the past tense; they carry data,
never behaviour.
"""

from __future__ import annotations

from textual.message import Message

from flarechat.chat import Turn


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


class BranchAsked(Message):
    """Another turn in the same place was asked for: the next one, or the one before."""

    def __init__(self, turn: Turn, step: int) -> None:
        super().__init__()
        self.turn, self.step = turn, step


class VerbAsked(Message):
    """Something is to be done with a turn; `verb` is a method of verbs.Verbs."""

    def __init__(self, verb: str, turn: Turn) -> None:
        super().__init__()
        self.verb, self.turn = verb, turn


class TurnModeChanged(Message):
    """Turn mode was entered or left."""

    def __init__(self, entered: bool) -> None:
        super().__init__()
        self.entered = entered


class AnswerMarked(Message):
    """One answer of a fan is to be looked at, from 0."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class AnswerPicked(Message):
    """One answer of a fan was chosen to go on with, from 0."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class PromptWanted(Message):
    """Turn mode was left, or a fan; `typed` is what began a message there."""

    def __init__(self, typed: str = "") -> None:
        super().__init__()
        self.typed = typed


class FollowAsked(Message):
    """End was pressed at the end of the prompt."""


class LeaveAsked(Message):
    """The key that leaves was pressed on an empty prompt."""


class CallAnswered(Message):
    """The user was asked about a call and said yes, always or no, or gave its result as `text`."""

    def __init__(self, call: str, answer: str, text: str = "") -> None:
        super().__init__()
        self.call, self.answer, self.text = call, answer, text
