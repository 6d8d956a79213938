"""Token ids to text as they come. Owns the bytes that do not make a character yet."""

from __future__ import annotations

import codecs

from flarechat.engine.text.tokenizer import Tokenizer

_HALF, _BEHIND = b"\xed\xa0", b"\xee"


class IncrementalDecoder:
    """Every `push` returns text that is final; all pushes and `flush` add up to `decode`.

    A character whose bytes lie in several tokens comes with the last of them; bytes that cannot
    become a character come as U+FFFD once that is certain. The cost of a push does not depend on
    what came before.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_first_space

    def push(self, token: int) -> str:
        """The text that is certain now."""
        text = self._utf8.decode(self._tokenizer.token_bytes(token))
        # Half a surrogate: the codec waits for the rest of it, which makes no character.
        if _HALF <= self._utf8.getstate()[0] < _BEHIND:
            text += self._utf8.decode(b"", final=True)
        return self._trimmed(text)

    def flush(self) -> str:
        """The end of the text: an incomplete character becomes U+FFFD. Starts afresh."""
        text = self._trimmed(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        self._at_start = self._tokenizer.strips_first_space
        return text

    def copy(self) -> IncrementalDecoder:
        """Another that has read the same."""
        other = IncrementalDecoder(self._tokenizer)
        other._utf8.setstate(self._utf8.getstate())
        other._at_start = self._at_start
        return other

    def _trimmed(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text
