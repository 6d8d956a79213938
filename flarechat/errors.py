"""Every error a user can meet, as one tree. Each carries a sentence and a hint.

    FlarechatError            exit 1   the engine or the application failed
    ├── EngineError           exit 1   the model process died or refused a request
    ├── UsageError            exit 2   a flag, a setting or an input is wrong
    │   ├── SettingsError              a configuration value is out of range or unknown
    │   ├── PromptTooLongError         the prompt does not fit the context
    │   ├── TemplateError              the model's chat template refused the conversation
    │   ├── SessionError               a session is missing, locked, torn or of an unknown kind
    │   └── GrammarError               a schema, expression or grammar cannot be enforced whole
    ├── ModelError            exit 3   the model is missing, broken, unknown or does not fit
    ├── StorageError          exit 1   the disk is full or a file cannot be written
    └── ConstraintError       exit 5   constrained output was not satisfied

The message says what is wrong and names the offending value; the hint says what to do.
"""

from __future__ import annotations

import sys
from typing import TextIO

from flarechat.textsafe import strip_controls

EXIT_OK = 0
EXIT_ENGINE = 1
EXIT_USAGE = 2
EXIT_MODEL = 3
EXIT_CONSTRAINT = 5
EXIT_INTERRUPTED = 130


class FlarechatError(Exception):
    """Root of the tree: something failed, and the user is told in one sentence."""

    exit_code = EXIT_ENGINE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class EngineError(FlarechatError):
    """The model process died or could not serve a request."""


class UsageError(FlarechatError):
    """What the user asked for cannot be done as asked."""

    exit_code = EXIT_USAGE


class SettingsError(UsageError):
    """A setting is out of range, of the wrong type or unknown."""


class PromptTooLongError(UsageError):
    """The rendered conversation has more tokens than the context holds."""


class TemplateError(UsageError):
    """The model's chat template refused the conversation or did something forbidden."""


class SessionError(UsageError):
    """A session file is missing, locked by another writer, damaged or alien."""


class GrammarError(UsageError):
    """A JSON schema, a regular expression or a grammar is wrong or cannot be enforced whole."""


class ModelError(FlarechatError):
    """A model is missing, broken, of an unknown architecture or too large for memory."""

    exit_code = EXIT_MODEL


class StorageError(FlarechatError):
    """A file could not be written: no space, no permission, read-only."""


class ConstraintError(FlarechatError):
    """The answer does not satisfy the constraint it was asked to satisfy."""

    exit_code = EXIT_CONSTRAINT


KINDS: dict[str, type[FlarechatError]] = {
    cls.__name__: cls
    for cls in (
        FlarechatError,
        EngineError,
        UsageError,
        SettingsError,
        PromptTooLongError,
        TemplateError,
        SessionError,
        GrammarError,
        ModelError,
        StorageError,
        ConstraintError,
    )
}


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """Why a text file cannot be read, in words that fit behind a colon."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return f"it is not UTF-8 at byte {error.start}"


def print_error(error: FlarechatError, stream: TextIO | None = None) -> None:
    """Print one error on stderr: the sentence, then the remedy on its own line.

    Both may quote a file, a template or an argument, so control characters are left out.
    """
    out = stream or sys.stderr
    print(f"flarechat: {strip_controls(error.message)}", file=out)
    if error.hint:
        print(f"           {strip_controls(error.hint)}", file=out)
