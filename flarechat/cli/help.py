"""Help as plain text, its options in groups. Owns the two command classes that print it.

Plain text keeps `--help` fast: nothing that draws boxes has to be imported.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class GroupedCommand(TyperCommand):
    """A command whose help shows its options by their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class GroupedGroup(TyperGroup):
    """The same for a command that has subcommands, which come first and in declared order."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write one section a panel: arguments first, then the command's own options."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        default = "Arguments" if parameter.param_type_name == "argument" else "Options"
        panel = getattr(parameter, "rich_help_panel", None) or default
        sections.setdefault(panel, []).append(record)
    for panel, records in sections.items():
        if records:
            with formatter.section(panel):
                formatter.write_dl(records, col_max=34)
