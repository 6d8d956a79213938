"""`flarechat cache`: what was computed and is kept on disk, shown, trimmed and cleared."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from flarechat.cli.ask import confirmed
from flarechat.cli.help import GroupedCommand, GroupedGroup
from flarechat.cli.table import age, counted, print_table, size

if TYPE_CHECKING:
    from flarechat.vault.folder import VaultFolder

_MIB = 1 << 20
_HELP = "Prefixes that were computed and are kept on disk."
app = typer.Typer(cls=GroupedGroup, rich_markup_mode=None, help=_HELP)


@dataclass(slots=True, kw_only=True)
class Kept:
    """What is kept of one model as it is computed on one kind of device. `tokens` are those whose
    state the snapshots hold, `unreadable` the files that do not even say that; `last_used` is in
    seconds since 1970."""

    identity: str
    model: str = ""
    recipe: str = ""
    fingerprint: str = ""
    dtype: str = ""
    device: str = ""
    snapshots: int = 0
    tokens: int = 0
    bytes: int = 0
    last_used: float = 0.0
    unreadable: int = 0


@app.command("show", cls=GroupedCommand)
def show(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON. Default: text.")] = False,
) -> None:
    """Say what is kept of which model, and how much may be."""
    folder, budget = _folder(), _budget(context)
    kept = _kept(folder)
    total = sum(one.bytes for one in kept)
    if as_json:
        models = [asdict(one) for one in kept]
        about = {"folder": str(folder.root), "budget": budget, "bytes": total, "models": models}
        print(json.dumps(about))
        return
    if kept:
        heads = ("MODEL", "DEVICE", "DTYPE", "SNAPSHOTS", "TOKENS", "SIZE", "USED")
        print_table(heads, [_row(one, time.time()) for one in kept])
    most = f"{size(budget)} (--prefix-cache-disk {budget // _MIB})"
    print(f"{size(total)} of at most {most} in {folder.root}.", file=sys.stderr)
    if unreadable := sum(one.unreadable for one in kept):
        print(
            f"{unreadable} of the files cannot be read; `flarechat sessions verify` says why.",
            file=sys.stderr,
        )


@app.command("trim", cls=GroupedCommand)
def trim(
    context: typer.Context,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="MIB",
            min=0,
            help="Most disk to leave them. Default: what --prefix-cache-disk says, 2048.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Delete what was used longest ago, where more is kept than may be.

    A tenth more than that goes, so that the next ones have room.
    """
    freed = _folder().trim(_budget(context) if to is None else to * _MIB)
    print(f"{size(freed)} were freed.", file=sys.stderr)


@app.command("clear", cls=GroupedCommand)
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Default: ask.")] = False,
) -> None:
    """Delete all of it; chats stay and compute it anew."""
    folder = _folder()
    entries = folder.entries()
    if entries and not yes:
        total = size(sum(entry.size for entry in entries))
        if not confirmed(f"Delete {counted(len(entries), 'snapshot')} ({total})?"):
            print("They were kept.", file=sys.stderr)
            return
    print(f"{size(folder.clear())} were freed.", file=sys.stderr)


def _folder() -> VaultFolder:
    from flarechat import paths
    from flarechat.vault.folder import VaultFolder

    return VaultFolder(paths.snapshots_dir())


def _budget(context: typer.Context) -> int:
    """The most bytes that may be kept, by the settings."""
    from flarechat.config import load_settings

    return load_settings(context.obj or {}).vault_bytes


def _kept(folder: VaultFolder) -> list[Kept]:
    """What is kept, the last used first."""
    from flarechat.vault.nodefile import Damaged, read_header

    found: dict[str, Kept] = {}
    for entry in folder.entries():
        kept = found.setdefault(entry.identity, Kept(identity=entry.identity))
        kept.snapshots += 1
        kept.bytes += entry.size
        kept.last_used = max(kept.last_used, entry.used_ns / 1e9)
        try:
            header = read_header(entry.path)
        except Damaged:
            kept.unreadable += entry.path.exists()
            continue
        who = header.identity
        kept.model, kept.recipe, kept.fingerprint = header.model, who.recipe, who.fingerprint
        kept.dtype, kept.device = who.dtype, who.device
        kept.tokens += len(header.tokens)
    return sorted(found.values(), key=lambda kept: -kept.last_used)


def _row(kept: Kept, now: float) -> tuple[str, ...]:
    return (
        kept.model or kept.fingerprint[:16] or "-",
        kept.device or "-",
        kept.dtype or "-",
        str(kept.snapshots),
        str(kept.tokens),
        size(kept.bytes),
        age(now - kept.last_used),
    )
