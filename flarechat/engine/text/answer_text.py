"""Reads the tokens of one answer as text, up to the first stop string.

Owns which token completes a stop string: a token stands whole, so what it says behind the stop is
not shown.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flarechat.engine.text.decoder import IncrementalDecoder
from flarechat.engine.text.stops import StopMatcher
from flarechat.engine.text.tokenizer import Tokenizer


class AnswerText:
    """One answer's text as it comes. Tokens that are `silent`, those that end it, say nothing.

    Text, tokens kept and stop do not depend on how the tokens were cut into rounds. A character
    that comes with its last byte completes a stop then, and a broken one as U+FFFD with the token
    that makes it certain.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), silent: Collection[int] = ()
    ) -> None:
        self._decoder, self._stops = IncrementalDecoder(tokenizer), StopMatcher(stops)
        self._silent = silent

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.hit

    def read(self, tokens: Sequence[int]) -> tuple[int, str]:
        """How many of the next tokens stand, all but those behind the one that completes a stop
        string, and the text that is certain now. Nothing is read behind a stop.
        """
        text = ""
        for place, token in enumerate(tokens):
            if self.stop is not None:
                return place, text
            piece = "" if token in self._silent else self._decoder.push(token)
            text += self._stops.push(piece)[0]
        return len(tokens), text

    def hear(self, tokens: Sequence[int]) -> str:
        """Read what was said before, as if it had not been cut off: whole stop strings in it were
        none, but one may be begun. The text that is certain now.
        """
        return self._stops.hear("".join(map(self._decoder.push, tokens)))

    def flush(self) -> str:
        """The tokens have ended: the text held back, up to a stop that its last bytes complete."""
        if self.stop is not None:
            return ""
        return self._stops.push(self._decoder.flush())[0] + self._stops.flush()

    def copy(self) -> AnswerText:
        """Another that has read the same, to read ahead what is not final yet; costs no text."""
        other = object.__new__(AnswerText)
        other._decoder, other._stops = self._decoder.copy(), self._stops.copy()
        other._silent = self._silent
        return other
