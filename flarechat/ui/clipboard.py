"""Puts text on the clipboard of this machine with the tool it has. Not every terminal passes the
escape sequence that Textual sends, so both are done.
"""

from __future__ import annotations

import shutil
import subprocess

TOOLS = (
    ("pbcopy",),
    ("wl-copy",),
    ("xclip", "-selection", "clipboard"),
    ("xsel", "--clipboard", "--input"),
    ("clip.exe",),
)


def copy(text: str) -> bool:
    """Give `text` to the first tool that takes it; False when there is none."""
    for tool in TOOLS:
        if not shutil.which(tool[0]):
            continue
        try:
            done = subprocess.run(
                tool,
                input=text.encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=2,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return True
    return False
