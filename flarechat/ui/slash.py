"""Slash commands: their table, their grammar and the nearest match of a mistyped one.

Knows what a line means, not how it is done.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from flarechat.errors import UsageError


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command as /help lists it."""

    name: str
    usage: str
    help: str


COMMANDS = (
    Command("new", "/new", "start a new chat in a tab of its own"),
    Command("tab", "/tab [N|new|next|prev|close]", "go to, open or close a tab; alone: list them"),
    Command("fan", "/fan N [TEXT]", "ask for 2 to 4 answers at once; alone: to the last message"),
    Command("pick", "/pick N", "go on with one answer of a fan"),
    Command("edit", "/edit [N]", "say message N, or the last one, otherwise"),
    Command("regen", "/regen [N]", "another answer to the last message, or to turn N"),
    Command("continue", "/continue", "go on with an answer that was stopped or cut off"),
    Command("other", "/other next|prev [N]", "another answer or message in the place of turn N"),
    Command("branch", "/branch N", "go back to turn N; what followed stays a branch"),
    Command("tokens", "/tokens [N]", "where the tokens of the last answer, or of N, came from"),
    Command("title", "/title [TEXT]", "call this chat so; alone: by its first words"),
    Command("tree", "/tree", "every branch of this chat; enter goes there"),
    Command("undo", "/undo", "take back the last message and its answer"),
    Command("redo", "/redo", "bring back what was taken back last"),
    Command("sessions", "/sessions", "list, search and open saved chats"),
    Command("resume", "/resume NAME", "open a saved chat, or go to its tab"),
    Command("stats", "/stats", "telemetry: off, compact, full"),
    Command("set", "/set NAME VALUE | /set system TEXT", "change the next turn"),
    Command("show", "/show info|parameters|system|spec", "say what is in force"),
    Command("json", "/json", "the next answers are JSON, an object or a list"),
    Command("schema", "/schema FILE", "they satisfy the JSON schema in a file"),
    Command("regex", "/regex EXPRESSION", "they match a regular expression as a whole"),
    Command("grammar", "/grammar FILE", "they follow a grammar, Lark's EBNF or GBNF"),
    Command("unconstrained", "/unconstrained", "they are any text again (also /free)"),
    Command("tools", "/tools [FILE|NAMES|off|choice WORD]", "tools to call; alone: list them"),
    Command("spec", "/spec on|off|auto", "speculation: fixed width, none, adaptive"),
    Command("copy", "/copy [N]", "copy the last answer, or turn N"),
    Command("clear", "/clear", "start over in this tab; the old chat stays saved"),
    Command("restart", "/restart", "start the model process again"),
    Command("help", "/help", "this list (also /?)"),
    Command("bye", "/bye", "quit (also /exit)"),
)
ALIASES = {
    "?": "help",
    "free": "unconstrained",
    "regenerate": "regen",
    "exit": "bye",
    "quit": "bye",
}
_NAMES = {command.name for command in COMMANDS} | set(ALIASES)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command and the text behind it."""

    name: str
    argument: str = ""


def parse(text: str) -> Invocation | str:
    """A command, or the literal message a line stands for; an unknown command is refused."""
    if not text.startswith("/"):
        return text
    if text.startswith("//"):
        return text[1:]
    name, _, argument = text[1:].partition(" ")
    if name in _NAMES:
        return Invocation(ALIASES.get(name, name), argument.strip())
    near = difflib.get_close_matches(name, _NAMES, n=1)
    hint = f"Did you mean /{near[0]}?" if near else "/help lists them."
    raise UsageError(f"/{name} is not a command.", f"{hint} Write // to send a slash.")


def completions(text: str) -> list[str]:
    """The commands a half-written one may become."""
    if not text.startswith("/") or " " in text:
        return []
    return [f"/{command.name}" for command in COMMANDS if command.name.startswith(text[1:])]


def help_text() -> str:
    """The list of commands, one a line."""
    wide = max(len(command.usage) for command in COMMANDS)
    return "\n".join(f"{command.usage:{wide}}  {command.help}" for command in COMMANDS)
