"""Makes text safe to show and to store. Knows single characters only, so pieces of a stream may
be cleaned one by one.
"""

from __future__ import annotations

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def strip_controls(text: str) -> str:
    """`text` without escape and other control characters; line breaks and tabs stay."""
    return text.translate(_CONTROLS)


def well_formed(text: str) -> str:
    """`text` with every lone surrogate replaced, so that it can be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")
