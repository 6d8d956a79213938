"""`flarechat models`: list, pull, inspect, make and remove models. Owns how they are printed."""

from __future__ import annotations

import sys
from pathlib import Path
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


@app.command("make-random", cls=GroupedCommand)
def make_random(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="The model family: qwen38.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    layers: Annotated[
        int | None,
        typer.Option("--layers", metavar="N", help="Layers, 4 to 48. Default: 4, or 48 if real."),
    ] = None,
    geometry: Annotated[
        str,
        typer.Option(
            "--geometry",
            metavar="SIZE",
            help="Sizes: tiny or real. Default: tiny.",
            show_default=False,
        ),
    ] = "tiny",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="bf16, fp8, nvfp4, nvfp4-mtp-fp8 or fp4-local. Default: bf16.",
            show_default=False,
        ),
    ] = "bf16",
    mtp: Annotated[
        str,
        typer.Option(
            "--mtp",
            metavar="PLACE",
            help="The draft head: inside, sidecar or none. Default: inside.",
        ),
    ] = "inside",
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", help="What the values follow. Default: 0.", show_default=False
        ),
    ] = 0,
) -> None:
    """Write a checkpoint of random values, to try loading and speed without the weights."""
    from flarechat.models.making import make_random

    count = layers if layers is not None else 48 if geometry == "real" else 4
    with Bar() as bar:
        path = make_random(
            folder, bar.show, family=family, layers=count, geometry=geometry, format=form, mtp=mtp,
            seed=seed,
        )  # fmt: skip
    print(path)


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
