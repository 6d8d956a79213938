"""Text to token ids and back.

Owns the meaning of a token: its bytes, and whether it is a control token. Knows nothing of chats.
`json_from_gguf` builds the tokenizer a GGUF describes, in the form of a tokenizer.json.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flarechat.errors import ModelError

_GPT2_SPLIT = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_BYTES_ONLY = {**_GPT2_SPLIT, "use_regex": False}
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> list[dict[str, Any]]:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return [split, _BYTES_ONLY]


_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}, _GPT2_SPLIT],
    "gpt-2": [_GPT2_SPLIT],
    "llama-bpe": _split(_WORDS.format(digits="{1,3}")),
    "qwen2": _split(_WORDS.format(digits="")),
}
_WHOLE_WORDS_FIRST = ("llama-bpe",)
_COMPOSED = ("qwen2",)

_CONTROL, _USER_DEFINED = 3, 4
_REMEDY = "Give another model with --model; a safetensors folder with tokenizer.json always works."


def json_from_gguf(metadata: Mapping[str, Any], source: Path) -> str:
    """The tokenizer of a GGUF as the text of a tokenizer.json."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "")
    if kind != "gpt2":
        raise ModelError(f"{source} has a tokenizer of the unknown kind {kind!r}.", _REMEDY)
    if pre not in _PRE_TOKENIZERS:
        raise ModelError(f"{source} splits text by the unknown rule {pre!r}.", _REMEDY)
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    kinds = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    merges = metadata.get("tokenizer.ggml.merges", [])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if not tokens or len(vocabulary) != len(tokens) or len(kinds) != len(tokens):
        raise ModelError(f"{source} has a vocabulary with gaps or repeats.", _REMEDY)
    pairs = [merge.split(" ") for merge in merges]
    for pair in pairs:
        if len(pair) != 2 or not vocabulary.keys() >= {*pair, "".join(pair)}:
            raise ModelError(f"{source} merges {' '.join(pair)!r}, no tokens it has.", _REMEDY)
    added = [
        added_token(number, token, special=kind == _CONTROL)
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return json.dumps(bpe(vocabulary, pairs, added, pre), ensure_ascii=False)


def added_token(number: int, token: str, *, special: bool) -> dict[str, Any]:
    """One of a tokenizer.json's added tokens."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **plain, "special": special}


def bpe(
    vocabulary: dict[str, int], merges: list[list[str]], added: list[dict[str, Any]], pre: str
) -> dict[str, Any]:
    """The content of a byte-level tokenizer.json whose text is split by the rule `pre`."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre in _COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": _GPT2_SPLIT,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _WHOLE_WORDS_FIRST,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


class Tokenizer:
    """One model's tokenizer.

    Two ways in: `encode` takes text the program wrote, where a control token's literal is that
    token; `encode_plain` takes text from people and models, where it is just characters.
    Added tokens that are not control tokens (runs of spaces, say) are tokens in both.
    Text out of control tokens is empty: they steer, they are not said. Any thread may ask.
    """

    def __init__(self, tokenizer_json: str) -> None:
        from tokenizers import Tokenizer as Backend

        try:
            self._backend: Any = Backend.from_str(tokenizer_json)
        except Exception as error:  # the library raises bare Exception for every fault
            raise ModelError(f"The model's tokenizer cannot be built: {error}.", _REMEDY) from error
        self._turn = threading.RLock()
        self.control: dict[str, int] = {
            token.content: number
            for number, token in self._backend.get_added_tokens_decoder().items()
            if token.special
        }
        self._control_ids = frozenset(self.control.values())
        # Asked of the library, as the whole text takes it long enough to read once.
        held = self._backend.decoder
        decoder = None if held is None else json.loads(held.__getstate__())
        self._bytes_of = _byte_rule(decoder)
        self.strips_first_space = _strips_first_space(decoder)
        literals = sorted(self.control, key=len, reverse=True)
        self._literals = re.compile("|".join(map(re.escape, literals)) or r"(?!)")

    @property
    def vocabulary(self) -> int:
        """How many ids it knows; a model's embedding may have more rows."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of text in which a control token's literal is the token."""
        with self._turn:
            return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of text in which nothing is a control token."""
        with self._turn:
            self._backend.encode_special_tokens = True
            try:
                return self.encode(text)
            finally:
                self._backend.encode_special_tokens = False

    def split_control(self, text: str) -> list[tuple[str, int | None]]:
        """The text cut at control tokens: (literal, its id) and (text between, None)."""
        pieces: list[tuple[str, int | None]] = []
        at = 0
        for match in self._literals.finditer(text):
            if match.start() > at:
                pieces.append((text[at : match.start()], None))
            pieces.append((match[0], self.control[match[0]]))
            at = match.end()
        return [*pieces, (text[at:], None)] if at < len(text) else pieces

    def id_of(self, literal: str) -> int | None:
        """The token with exactly this text, if there is one."""
        found = self._backend.token_to_id(literal)
        return None if found is None else int(found)

    def is_control(self, token: int) -> bool:
        """Whether the token steers and is not said."""
        return token in self._control_ids

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to the text; nothing for control tokens and ids without a token."""
        if token in self._control_ids:
            return b""
        text = self._backend.id_to_token(token)
        return b"" if text is None else self._bytes_of(text)

    def token(self, token: int) -> str:
        """The token for people: its text, or its literal when it is a control token."""
        if token in self._control_ids:
            return str(self._backend.id_to_token(token))
        return self.token_bytes(token).decode(errors="replace")

    def spelled(self, token: int) -> str:
        """The token for people who look at it alone: bytes that are no character are \\xNN."""
        if token in self._control_ids:
            return str(self._backend.id_to_token(token))
        return self.token_bytes(token).decode(errors="backslashreplace")

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of the tokens; bytes that are not UTF-8 become U+FFFD."""
        text = b"".join(map(self.token_bytes, tokens)).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_first_space else text


def _byte_rule(decoder: Any) -> Any:
    """How this decoder turns the name of a token into bytes."""
    kinds = {step.get("type") for step in _steps(decoder)}
    if "ByteLevel" in kinds:
        return _from_byte_level
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _from_sentencepiece
    raise ModelError(f"The model's tokenizer decodes by the unknown rule {kinds}.", _REMEDY)


def _steps(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    return list(decoder["decoders"]) if decoder.get("type") == "Sequence" else [decoder]


def _strips_first_space(decoder: Any) -> bool:
    return any(
        (step.get("type") == "Strip" and step.get("content") == " " and step.get("start"))
        or (step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in _steps(decoder)
    )


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in of every byte in byte-level vocabularies.

    Bytes that print stand for themselves; the others take the characters from 256 on, in order.
    """
    themselves = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in themselves]
    return {chr(byte): byte for byte in themselves} | {
        chr(256 + rank): byte for rank, byte in enumerate(others)
    }


_ALPHABET = _byte_alphabet()


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:  # an added token, written as its text
        return token.encode()


def _from_sentencepiece(token: str) -> bytes:
    byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
