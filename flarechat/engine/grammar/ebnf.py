"""Grammars that people write: Lark's EBNF, or GBNF as llama.cpp has it.

Owns what of them is taken. Whatever would reach past the text of an answer is refused: schemas
inside, which would not be checked, other grammars, control tokens, and what is said of a rule in
brackets.
"""

from __future__ import annotations

import re

from flarechat.errors import GrammarError

_QUOTED = re.compile(
    r'"(?:[^"\\\n]|\\.)*"i?|/(?![/*])(?:[^/\\\n]|\\.)+/[imslux]*|//[^\n]*|\#[^\n]*'
)
_REFUSED = (
    (re.compile(r"%(?!import\b|ignore\b)\w*"), "{} is not supported"),
    (re.compile(r"<[^>\n]*>?"), "{} asks for control tokens"),
    (re.compile(r"@\w*"), "{} refers to another grammar"),
    (
        re.compile(r"^\s*[?!]?\w+(?:\.-?\d+)?\s*\[[^\]\n]*\]\s*(?=:)", re.MULTILINE),
        "{} sets options",
    ),
)


def lark_of(text: str) -> str:
    """The grammar in Lark's form, or a GrammarError that says what is not taken and where."""
    if "::=" in _bare(text):
        return _converted(text)
    plain = _bare(text)
    for pattern, sentence in _REFUSED:
        found = pattern.search(plain)
        if found:
            line = plain.count("\n", 0, found.end()) + 1
            what = sentence.format(found[0].strip())
            raise GrammarError(
                f"The grammar cannot be used: {what} in line {line}.", "Leave it out."
            )
    return text


def _bare(text: str) -> str:
    """The text with blanks for strings, expressions and comments."""
    return _QUOTED.sub(lambda found: " " * len(found[0]), text)


def _converted(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the converter raises what it meets
        raise GrammarError(
            f"The grammar cannot be used: {str(error).splitlines()[0]}.",
            "Mend it, or write it in Lark's form.",
        ) from error
