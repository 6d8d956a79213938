"""Finds the first of several strings in text as it comes, by the automaton of Aho and Corasick.

Owns how far into each of the strings the text has got, and so the text that may still become one.
A string is found by its code points as they are: nothing is composed, folded or taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence

# Read to its end without having found anything.
_ROOT = 0


class Finder:
    """Passes text on up to the string that is complete first, of several at one character the
    longest, and then begins anew.

    What is found does not depend on how the text was cut. Reading costs a bounded number of steps
    a character, however many and however long the strings are, and less than the longest string is
    held back. Raises ValueError for an empty string, which would be found everywhere.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if "" in strings:
            raise ValueError("An empty string cannot be looked for.")
        # A node is what the text may end with: the first depths[node] characters of words[node].
        self._edges: dict[tuple[int, str], int] = {}
        self._words, self._depths = [""], [0]
        self._failures, self._found = [_ROOT], list[str | None]([None])
        self._node = _ROOT
        self._build(strings)

    def find(self, text: str, start: int = 0) -> tuple[str, str | None, int]:
        """Read text[start:] up to a string: what is certain to stand before it, the string, and
        where in `text` it ends. Without one None, and the end of the text.
        """
        if not self._edges:
            return text[start:], None, len(text)
        held, node = self._node, self._node
        for at in range(start, len(text)):
            node = self._next(node, text[at])
            found = self._found[node]
            if found is not None:
                self._node = _ROOT
                return self._passed(held, text, start, at + 1, len(found)), found, at + 1
        self._node = node
        return self._passed(held, text, start, len(text), self._depths[node]), None, len(text)

    def hear(self, text: str) -> str:
        """Read text in which whole strings count for nothing; what it ends inside of may go on.
        What is certain not to be part of that.
        """
        held, node = self._node, self._node
        for character in text:
            node = self._next(node, character)
        while node and self._depths[node] == len(self._words[node]):
            node = self._failures[node]
        self._node = node
        return self._passed(held, text, 0, len(text), self._depths[node])

    def flush(self) -> str:
        """The text has ended: what was held back is none of the strings."""
        held, self._node = self._node, _ROOT
        return self._words[held][: self._depths[held]]

    def copy(self) -> Finder:
        """Another that stands where this one does; the tables are shared, for they never change."""
        other = object.__new__(Finder)
        other.__dict__.update(self.__dict__)
        return other

    def _passed(self, held: int, text: str, start: int, end: int, kept: int) -> str:
        """What was held at the node, and text[start:end], without the last `kept` characters."""
        size = self._depths[held] + end - start - kept
        word, depth = self._words[held], self._depths[held]
        return word[: min(size, depth)] + text[start : start + max(0, size - depth)]

    def _next(self, node: int, character: str) -> int:
        """The longest that the text may end with, one character on."""
        while (found := self._edges.get((node, character))) is None and node:
            node = self._failures[node]
        return found or _ROOT

    def _build(self, strings: Sequence[str]) -> None:
        """Level by level, so that a node finds what it falls back to made."""
        ways = [(_ROOT, string) for string in dict.fromkeys(strings)]
        depth = 0
        while ways:
            ways = [(self._extend(node, string, depth), string) for node, string in ways]
            depth += 1
            ways = [(node, string) for node, string in ways if depth < len(string)]

    def _extend(self, node: int, string: str, depth: int) -> int:
        """The node one character of the string further on."""
        way = node, string[depth]
        if way not in self._edges:
            fallback = self._next(self._failures[node], string[depth]) if node else _ROOT
            self._edges[way] = len(self._words)
            self._words.append(string)
            self._depths.append(depth + 1)
            self._failures.append(fallback)
            self._found.append(self._found[fallback])
        reached = self._edges[way]
        if depth + 1 == len(string):
            self._found[reached] = string
        elif self._depths[reached] == len(self._words[reached]):
            self._words[reached] = string
        return reached
