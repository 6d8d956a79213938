"""Answers within a prompt: the very tokens they were generated as, where those say them.

Owns how an answer's characters are found in a rendered chat and how its tokens are laid over them.
Whatever does not fit is encoded anew: the text of a prompt never depends on tokens. A token that
says nothing, such as a control token, ends what is taken of an answer's tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from flarechat.engine.text.thinking import CLOSE, ends_in_thinking
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.protocol import Message

# A part of a rendered chat: where it begins and ends, and the message that says it.
Located = tuple[int, int, Message]

# A character has four bytes at most, and each may be a token of its own.
_LONGEST_CHARACTER = 4
_INVALID = "\ufffd"


def located_answers(
    render: Callable[[Sequence[Message]], str], messages: Sequence[Message], text: str,
    spare: Iterator[str],
) -> list[Located]:  # fmt: skip
    """Where the contents of the messages that have tokens stand in `text`, a rendered chat.

    The chat is rendered again with a `spare` character on both sides of each such content, within
    the blank space around it, which some templates trim. Only where nothing but these characters
    is added are the places between them known: a template that says something else than a
    message's content, or looks at it, gives none.
    """
    fences: dict[str, Message] = {}
    fenced = list(messages)
    for place, message in enumerate(messages):
        core = message.content.strip()
        fence = next(spare, None) if message.tokens and core else None
        if fence is not None:
            fences[fence] = message
            before, _, behind = message.content.partition(core)
            content = f"{before}{fence}{core}{fence}{behind}"
            fenced[place] = replace(message, content=content)
    if not fences:
        return []
    shown = render(fenced)
    if shown.translate(dict.fromkeys(map(ord, fences))) != text:
        return []
    found = enumerate(re.finditer(f"[{''.join(fences)}]", shown))
    places = [(mark.start() - earlier, mark[0]) for earlier, mark in found]
    return list(_between(text, places, fences))


def _between(
    text: str, places: Sequence[tuple[int, str]], fences: dict[str, Message]
) -> Iterator[Located]:
    """What stands between two of the same fence, if it is the content of its message."""
    at = 0
    while at + 1 < len(places):
        (start, opening), (end, closing) = places[at], places[at + 1]
        whole = opening == closing and text[start:end] == fences[opening].content.strip()
        if whole:
            yield start, end, fences[opening]
        at += 2 if whole else 1


def spelt(tokenizer: Tokenizer, tokens: Sequence[int], before: str, text: str) -> list[int]:
    """Ids of `text`, which stands behind `before` in an answer of these tokens: the tokens as far
    as they say it, and what is left encoded anew.
    """
    said = saying(tokenizer, tokens)
    if not before and tokenizer.decode(said) == text:
        return said
    first = 0 if not before else None
    last = at = 0
    wanted = before + text
    for here in range(1, len(said) + 1):
        piece = _between_tokens(tokenizer, said, last, here)
        if wanted.startswith(piece, at):
            last, at = here, at + len(piece)
            first = here if at == len(before) else first
        elif here - last >= _LONGEST_CHARACTER:
            break
    # Bytes that made no character one by one may make another together.
    if first is None or _between_tokens(tokenizer, said, first, last) != wanted[len(before) : at]:
        return tokenizer.encode_plain(text)
    return said[first:last] + tokenizer.encode_plain(wanted[at:])


def _between_tokens(tokenizer: Tokenizer, said: Sequence[int], first: int, last: int) -> str:
    """What said[first:last] add to the text."""
    text = b"".join(map(tokenizer.token_bytes, said[first:last])).decode(errors="replace")
    return text.removeprefix(" ") if tokenizer.strips_first_space and not first else text


def begun_tokens(tokenizer: Tokenizer, prompt: Sequence[int], message: Message) -> list[int]:
    """Ids of an answer that is to go on behind `prompt`.

    It was cut off, inside a character or a stop string perhaps, so its tokens may say more than its
    text does, or what it thought before. Where they do not say it, the text is encoded, behind the
    end of the thinking if the prompt opens that.
    """
    said = saying(tokenizer, message.tokens)
    text = tokenizer.decode(said)
    heard = (text, text.partition(CLOSE)[2].lstrip())
    if len(said) == len(message.tokens) > 0:
        content = message.content.rstrip(_INVALID)
        if any(part.startswith(content) for part in heard):
            return said
    thought = f"\n{CLOSE}\n\n" if ends_in_thinking(tokenizer, prompt) else ""
    return tokenizer.encode_plain(thought + message.content) if message.content else []


def saying(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """The tokens up to the first that is none of the model's, or says nothing."""
    return list(takewhile(lambda t: 0 <= t < 2**31 and tokenizer.token_bytes(t), tokens))
