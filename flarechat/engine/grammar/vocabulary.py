"""A model's tokens as the grammar library sees them.

Owns which token stands for which bytes under a constraint: control tokens for none, and of several
tokens with the same bytes only the one that text is encoded as, so that bytes that are forced are
one token.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from flarechat.engine.text.thinking import CLOSE
from flarechat.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_SENTINEL = "\x02"


class Vocabulary:
    """The tokens of `tokenizer` for a model with so many logit `columns`; `eos` end an answer.

    What the library makes of them takes a third of a second for 49,152 tokens, so it is made once,
    when it is first asked for; any thread may ask. Columns without a token are never legal.
    """

    def __init__(self, tokenizer: Tokenizer, columns: int, eos: Sequence[int]) -> None:
        self.tokenizer, self.columns, self.eos = tokenizer, columns, frozenset(eos)
        self._lock = threading.Lock()
        self._library: LLTokenizer | None = None

    @property
    def library(self) -> LLTokenizer:
        """The tokens in the library's form; waits until it is made."""
        with self._lock:
            if self._library is None:
                self._library = self._made()
            return self._library

    @cached_property
    def thinkable(self) -> bytes:
        """The tokens that thinking may go on with wherever they do not close it: token i is bit
        i % 8 of byte i // 8, in ceil(columns / 8) bytes. All that say something or steer, but no
        end."""
        bits = bytearray((self.columns + 7) // 8)
        for token in range(self.columns):
            said = self.tokenizer.token_bytes(token) or self.tokenizer.is_control(token)
            if said and token not in self.eos:
                bits[token // 8] |= 1 << token % 8
        return bytes(bits)

    @cached_property
    def closing(self) -> tuple[int, ...]:
        """The tokens that can complete the closing mark of thinking."""
        last = CLOSE[-1:].encode()
        return tuple(n for n in range(self.columns) if last in self.tokenizer.token_bytes(n))

    def encoded(self, text: bytes) -> list[int]:
        """Tokens with exactly these bytes."""
        return list(self.library.tokenize_bytes(text))

    def _made(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        form = _Form(self.tokenizer, self.columns, self.eos)
        return LLTokenizer(TokenizerWrapper(form), n_vocab=self.columns, eos_token=sorted(self.eos))


class _Form:
    """The attributes that the library reads, by its names."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, columns: int, eos: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(eos)
        self.tokens = [tokenizer.token_bytes(token) for token in range(columns)]
        self._by_bytes: dict[bytes, int] = {}
        self._choose()
        steering = {token for token in tokenizer.control.values() if token < columns} | eos
        self.special_token_ids = sorted(steering)
        for token in steering:
            self.tokens[token] = tokenizer.token(token).encode()
        self._longest = max(map(len, self._by_bytes), default=1)

    def _choose(self) -> None:
        """Leave bytes to one token of those that have them."""
        for token, said in enumerate(self.tokens):
            first = self._by_bytes.setdefault(said, token)
            if said and first != token:
                keep = token if self._encoded(said) == [token] else first
                self.tokens[first + token - keep] = b""
                self._by_bytes[said] = keep
        self._by_bytes.pop(b"", None)

    def _encoded(self, text: bytes) -> list[int]:
        """Ids of text as it goes on inside a text; empty where it is encoded as something else."""
        try:
            said = text.decode()
        except UnicodeDecodeError:
            return []
        for lead in ("", _SENTINEL):
            ids = self._tokenizer.encode_plain(lead + said)
            while lead and ids and not self._tokenizer.token_bytes(ids[0]).endswith(lead.encode()):
                ids = ids[1:]
            ids = ids[1:] if lead else ids
            if b"".join(map(self._tokenizer.token_bytes, ids)) == text:
                return ids
        return []

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids with exactly these bytes: the text's own where there are any, else the longest."""
        rest = text.encode() if isinstance(text, str) else text
        return self._encoded(rest) or self._greedy(rest)

    def _greedy(self, rest: bytes) -> list[int]:
        ids: list[int] = []
        while rest:
            cuts = (rest[:size] for size in range(min(self._longest, len(rest)), 0, -1))
            piece = next((cut for cut in cuts if cut in self._by_bytes), None)
            if piece is None:
                return ids
            ids.append(self._by_bytes[piece])
            rest = rest[len(piece) :]
        return ids
