"""`flarechat models`: list, pull, inspect and remove models. Owns only how they are printed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flarechat.cli.ask import confirmed
from flarechat.cli.help import GroupedCommand, GroupedGroup
from flarechat.cli.progress import Bar
from flarechat.cli.table import print_table, size

app = typer.Typer(cls=GroupedGroup, rich_markup_mode=None, help="Models on this machine.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A model's name, as `list` shows it.")]


@app.command("list", cls=GroupedCommand)
def list_models() -> None:
    """List the models that are here."""
    from flarechat.models import inspection, store

    rows = [
        (m.name, m.kind, size(m.bytes), m.source, inspection.head_of(m) or "-", str(m.path))
        for m in store.installed()
    ]
    if not rows:
        print("There are no models yet; `flarechat models pull smollm2` gets one.", file=sys.stderr)
        return
    print_table(("NAME", "KIND", "SIZE", "SOURCE", "MTP HEAD", "PATH"), rows)


@app.command("pull", cls=GroupedCommand)
def pull_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A known or a Hugging Face name.")],
) -> None:
    """Fetch a model; an interrupted pull leaves nothing half."""
    from flarechat.models import store

    with Bar() as bar:
        path = store.pull(name, lambda done, total: bar.show("download", done, total))
    print(path)


@app.command("inspect", cls=GroupedCommand)
def inspect(
    model: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A model's name or path.")],
) -> None:
    """Say what a model is, without loading it."""
    import dataclasses

    from flarechat.models import inspection

    facts = dataclasses.asdict(inspection.inspect(model))
    rows = [(name.replace("_", " "), str(value)) for name, value in facts.items()]
    print_table(("FIELD", "VALUE"), rows)


@app.command("rm", cls=GroupedCommand)
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Default: ask.")] = False,
) -> None:
    """Delete a pulled model."""
    from flarechat.models import store

    if not yes and not confirmed(f"Delete the model {name}?"):
        print(f"{name} was kept.", file=sys.stderr)
        return
    store.remove(name)
    print(f"{name} was deleted.", file=sys.stderr)
