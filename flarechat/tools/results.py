"""What came of a call: a word for it and the text that goes back to the model; or why nothing
did, as the functions that come with flarechat say it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from flarechat.protocol import ToolCall
from flarechat.textsafe import strip_controls, well_formed

DONE, FAILED, REFUSED, UNRUN, STOPPED = "done", "failed", "refused", "unrun", "stopped"

# Escape sequences as a whole: without their first character they would be left as letters.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?|\x1b[ -/]*[0-~]"
)


class ToolError(Exception):
    """A tool has no result; the message is a sentence for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of the call with the id `call`, of the tool `name`. `outcome` says that it is
    done, failed, was refused by the user, was not run, or was stopped.
    """

    call: str
    name: str
    outcome: str
    text: str

    @classmethod
    def of(cls, call: ToolCall, outcome: str, text: str) -> Result:
        """The result of a call; its text is cleaned."""
        return cls(call=call.id, name=call.name, outcome=outcome, text=clean(text))


def clean(text: str) -> str:
    """`text` without escape sequences and control characters, and such that it can be encoded."""
    return well_formed(strip_controls(_SEQUENCES.sub("", text)))
