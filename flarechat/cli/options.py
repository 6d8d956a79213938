"""The options that several commands share, each declared once, and how they become settings.

Owns their names and help texts. A command under `@takes_settings` has a parameter
`settings: Settings` and takes all of them. The settings are imported when a command runs, which
keeps `--help` fast.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_RECOMMENDED = "Default: what the model recommends."

# panel → (setting, type, metavar, help); the flag is the setting's name with dashes. Numbers are
# taken as text: the settings parse them, and say what is wrong, wherever they come from.
_Row = tuple[str, Any, str | None, str]
_PANELS: dict[str, tuple[_Row, ...]] = {
    "Model": (
        ("model", str, "NAME|PATH",
         "A known name, a GGUF file, a folder or a Hugging Face name. Default: smollm2."),
        ("device", str, "DEVICE", "auto, cpu, cuda or cuda:N. Default: auto."),
        ("dtype", str, "TYPE",
         "auto, float32, float16, bfloat16, or on a CPU packed-float16 or as-stored (weights as "
         "their file has them). Default: auto."),
        ("ctx", str, "N", "Context length in tokens. Default: the model's own."),
        ("concurrency", str, "N",
         "Answers at once, 1, 2 or 4 (3 counts as 4), in tabs and by /fan; each takes memory. "
         "Default: 1."),
        ("threads", str, "N", "CPU threads of the engine. Default: the engine chooses."),
        ("executor", str, "NAME",
         "eager, graph (rounds captured at start; CUDA only) or auto. Default: auto."),
        ("prefix_cache", str, "MIB",
         "Most memory for prefixes computed before, so that none is computed twice; 0 keeps none. "
         "Default: a quarter of what is free, 1024 at most."),
        ("prefix_cache_disk", str, "MIB",
         "Most disk for them, so that a chat goes on at once after a restart; 0 writes none. "
         "Default: 2048."),
    ),
    "Sampling": (
        ("seed", str, "N", "The same seed gives the same text. Default: a new one every time."),
        ("temperature", str, "T",
         f"Softens the choice; 0 always takes the likeliest token. {_RECOMMENDED}"),
        ("top_k", str, "N", f"Keep the N likeliest tokens; 0 keeps all. {_RECOMMENDED}"),
        ("top_p", str, "P",
         f"Keep the likeliest tokens up to probability P, in (0, 1]. {_RECOMMENDED}"),
        ("min_p", str, "P",
         f"Drop tokens under P times the likeliest's probability, in [0, 1]. {_RECOMMENDED}"),
        ("repetition_penalty", str, "X",
         f"Divide the score of tokens seen before; 1 is off. {_RECOMMENDED}"),
        ("presence_penalty", str, "X",
         f"Lower the score of tokens seen before, in [-2, 2]; 0 is off. {_RECOMMENDED}"),
        ("frequency_penalty", str, "X",
         f"Lower it for every time a token was seen, in [-2, 2]; 0 is off. {_RECOMMENDED}"),
    ),
    "Answer": (
        ("max_tokens", str, "N", "Longest answer in tokens. Default: 1024."),
        ("stop", list[str], "TEXT",
         "End before this text, in thinking too; may be repeated. Default: none."),
        ("system", str, "TEXT", "System prompt. Default: none, or the session's own."),
        ("thinking", bool, None,
         "Let a model that thinks do so before it answers. Default: let it."),
        ("logprobs", str, "N",
         "Report log-probabilities with N alternatives a token, 0 to 20. Default: 0, off."),
        ("tools", list[str], "FILE|NAMES",
         "Tools that the model may call: a JSON or TOML file, or calculator,clock; may be "
         "repeated. Default: none."),
        ("tool_choice", str, "CHOICE",
         "auto, none, required, or the name of the tool to call first. Default: auto."),
        ("tool_rounds", str, "N",
         "Most answers with calls before a turn ends, 1 to 64. Default: 8."),
        ("json_schema", str, "FILE|-|JSON",
         "Answer with JSON that this schema describes: a file, - for what is piped in, or the "
         "schema itself. Default: any text."),
        ("json_answer", bool, None,
         "Answer with a JSON object or list, whatever is in it. Default: any text."),
        ("regex", str, "EXPRESSION",
         "Answer with text that matches this as a whole. Default: any text."),
        ("grammar", str, "FILE|-",
         "Answer with text of this grammar, Lark's EBNF or GBNF. Default: any text."),
        ("session", str, "NAME",
         "Continue the session of this name, or begin it. Default: not a named one."),
    ),
    "Drafting": (
        ("mtp_draft_tokens", str, "N",
         "Most drafts a round, 0 to 7; 0 is plain decoding. Default: 7."),
        ("no_mtp", bool, None,
         "Load no MTP head and draft with none. Default: draft where there is one."),
        ("mtp_file", str, "PATH",
         "MTP head to use if it fits. Default: one beside the model or shipped with flarechat."),
        ("mtp_adaptive_verification", bool, None,
         "Choose every round's width by its measured cost, or keep it fixed. Default: choose."),
        ("speculative_token_capacity", str, "N",
         "Most tokens verified in one round, all requests together. Default: 128."),
        ("history_drafts", bool, None, "Draft by copying from earlier text. Default: on."),
        ("acceptance", str, "RULE",
         "ratio, match, or auto: match with a seed, else ratio. Default: auto."),
    ),
}  # fmt: skip


def _parameter(panel: str, row: _Row) -> inspect.Parameter:
    """One option as a parameter that is None unless its flag is given."""
    name, kind, metavar, text = row
    flag = "--" + name.replace("_", "-")
    if kind is bool and not name.startswith("no_"):
        flag = f"{flag}/--no-{flag[2:]}"
    option = typer.Option(flag, metavar=metavar, help=text, rich_help_panel=panel)
    annotated: Any = Annotated
    annotation = annotated[kind | None, option]
    return inspect.Parameter(name, _KEYWORD, default=None, annotation=annotation)


_OPTIONS = [_parameter(panel, row) for panel, rows in _PANELS.items() for row in rows]


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` the shared options in place of its parameter `settings`.

    Flags given before a subcommand hold for it too; the command before it is then not called,
    so that its settings file need not be read.
    """
    hints = typing.get_type_hints(command, localns={"Settings": object}, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name], kind=_KEYWORD)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "settings"
    ]

    @wraps(command)
    def with_options(context: typer.Context, **values: Any) -> None:
        given = _given({option.name: values.pop(option.name) for option in _OPTIONS})
        context.obj = {**(context.obj or {}), **given}
        if context.invoked_subcommand is None:
            from flarechat.config import load_settings

            command(settings=load_settings(context.obj), **values)

    context = inspect.Parameter("context", _KEYWORD, annotation=typer.Context)
    parameters = [context, *own, *_OPTIONS]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, under the names of their settings."""
    flags["mtp"] = False if flags.pop("no_mtp") else None
    for several in ("stop", "tools"):
        flags[several] = tuple(flags[several] or ()) or None
    return {name: value for name, value in flags.items() if value is not None}
