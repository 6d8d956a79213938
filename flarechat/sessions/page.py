"""A conversation as one HTML page that needs nothing else: no script, no network, light and dark.

Owns the escaping: no text of a session reaches the page as markup.
"""

from __future__ import annotations

from html import escape

from flarechat.sessions.session import Session
from flarechat.sessions.telling import Part, ending, speaker, told_call, where
from flarechat.sessions.turns import Turn
from flarechat.textsafe import strip_controls

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ --back: #ffffff; --ink: #1c1e21; --faint: #62676d; --user: #eef3fa; --line: #d5d9de; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --back: #16181b; --ink: #e3e6e9; --faint: #9aa1a8; --user: #20262e; --line: #383e45; }}
}}
body {{ background: var(--back); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif;
  max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
article {{ border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem;
  margin: 1rem 0; }}
article.user {{ background: var(--user); }}
h1 {{ font-size: 1.4rem; }}
h2, summary, .branch {{ color: var(--faint); font-size: .85rem; font-weight: 600; margin: 0; }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; }}
details {{ color: var(--faint); }}
.call, article.tool .text {{ font-family: ui-monospace, monospace; font-size: .85rem;
  overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{title}</h1>
"""


def page(session: Session, parts: list[Part]) -> str:
    """The whole page; every part behind the first is a branch and says where it begins."""
    pieces = [_HEAD.format(title=_safe(session.title or session.name))]
    if session.system:
        pieces.append(_article("system", "System", _text(session.system)))
    for number, (turns, behind) in enumerate(parts, start=1):
        if number > 1:
            begins = f"Branch {number} of {len(parts)}, {where(behind)}"
            pieces.append(f'<hr>\n<p class="branch">{_safe(begins)}</p>\n')
        pieces += map(_turn, turns)
    return "".join([*pieces, "</body>\n</html>\n"])


def _turn(turn: Turn) -> str:
    thinking = ""
    if turn.thinking:
        thinking = f"<details><summary>Thinking</summary>{_text(turn.thinking)}</details>\n"
    said = _text(turn.text.rstrip()) if turn.text.strip() or not turn.calls else ""
    calls = "".join(f'<p class="call">{_safe(told_call(call))}</p>\n' for call in turn.calls)
    return _article(turn.role, speaker(turn) + ending(turn), thinking + said + calls)


def _article(kind: str, head: str, body: str) -> str:
    return f'<article class="{kind}">\n<h2>{_safe(head)}</h2>\n{body}</article>\n'


def _text(text: str) -> str:
    return f'<div class="text">{_safe(text)}</div>\n'


def _safe(text: str) -> str:
    return escape(strip_controls(text))
