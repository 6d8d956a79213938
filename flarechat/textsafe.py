"""Makes text safe to show and to store. Knows single characters only, so pieces of a stream may
be cleaned one by one.
"""

from __future__ import annotations

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
# Without a shape of their own, they turn around or hide what stands beside them. Joiners, which
# some languages need, are not among them.
_DISGUISES = {
    code: f"\\u{code:04x}"
    for code in (
        *(0x200B, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF),
        *range(0x202A, 0x202F),
        *range(0x2060, 0x2070),
    )
}


def strip_controls(text: str) -> str:
    """`text` without escape and other control characters; line breaks and tabs stay."""
    return text.translate(_CONTROLS)


def spelt_out(text: str) -> str:
    """`text` for somebody who decides by it: without control characters, and with marks of
    direction and characters of no width as the escapes that JSON has for them."""
    return strip_controls(text).translate(_DISGUISES)


def well_formed(text: str) -> str:
    """`text` with every lone surrogate replaced, so that it can be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")
