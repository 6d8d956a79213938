"""The tables of checks: machine, equality, service, floors, memory. Owns how they are counted."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.h200.rows import Data, Row, Shown, distinct, where


def machine(data: Data) -> Shown | None:
    """Where and with what every run was made."""
    rows = []
    for run in data.runs:
        host, versions = run["machine"], run["versions"]
        chip = host.get("gpu") or host["processor"]
        named = ", ".join(f"{k} {v}" for k, v in versions.items())
        driver = host.get("driver", "")
        rows.append((run["date"], run["revision"], chip, driver, named, f"`{run['command']}`"))
    columns = ("date", "revision", "device", "driver", "versions", "command")
    return Shown(columns, rows) if rows else None


def equality(data: Data) -> Shown | None:
    """How many answers of the two executors are equal, and how far states are apart."""
    rows, made = data.rows["equality"], []
    for law, case, same in distinct(rows, "law", "case", "same_plans"):
        own = where(rows, law=law, case=case, same_plans=same)
        recorded = [row for row in own if row["records"]]
        stated = [row for row in own if row["states"]]
        worst = max(stated, key=lambda row: row["state_rel"], default=None)
        made.append(
            (
                law, case, "the same" if same else "its own", str(len(own)),
                str(sum(row["same_tokens"] for row in own)),
                f"{sum(row['same_records'] for row in recorded)} of {len(recorded)}",
                f"{sum(row['state_abs'] == 0 for row in stated)} of {len(stated)}",
                f"{worst['state_abs']:.2g} / {worst['state_rel']:.2g}" if worst else "",
                f"{min(row['restored'] for row in own)} to {max(row['restored'] for row in own)}",
            )
        )  # fmt: skip
    columns = ("law", "case", "plans", "answers", "same tokens", "same records",
               "states bit-equal", "largest difference, absolute / relative",
               "restored tokens")  # fmt: skip
    return Shown(columns, made) if made else None


def same_text(data: Data) -> Shown | None:
    """How many answers at any width are the text of plain decoding."""
    rows, made = data.rows["widths-equal"], []
    for executor, law, case in distinct(rows, "executor", "law", "case"):
        own = where(rows, executor=executor, law=law, case=case)
        equal, apart = sum(row["same_tokens"] for row in own), _earliest(own)
        made.append((executor, law, case, str(len(own)), str(equal), apart))
    columns = ("executor", "law", "case", "answers", "equal to off", "earliest difference at token")
    return Shown(columns, made) if made else None


def _earliest(rows: Sequence[Row]) -> str:
    places = [row["first_apart"] for row in rows if not row["same_tokens"]]
    return str(min(places)) if places else ""


def service(data: Data) -> Shown | None:
    """The answer against a bare replay of its rounds."""
    made = [
        (
            row["arm"], f"{row['rounds']:g}", f"{row['service_ms']:.1f}", f"{row['bare_ms']:.1f}",
            f"{row['ratio']:.3f}", f"{100 * row['idle_share']:.1f} %",
        )
        for row in data.rows["service"]
    ]  # fmt: skip
    columns = ("arm", "rounds", "served, ms", "bare replay, ms", "ratio", "device idle")
    return Shown(columns, made) if made else None


def host(data: Data) -> Shown | None:
    """Host microseconds a round by part."""
    rows = data.rows["host"]
    parts = [part for (part,) in distinct(rows, "part")]
    made = []
    for (arm,) in distinct(rows, "arm"):
        spent = {row["part"]: row["us_a_round"] for row in where(rows, arm=arm)}
        busy = sum(us for part, us in spent.items() if part != "wait")
        cells = (f"{spent[p]:.0f}" if p in spent else "" for p in parts)
        made.append((arm, *cells, f"{busy:.0f}"))
    return Shown(("arm", *parts, "all but wait"), made) if made else None


def floors(data: Data) -> Shown | None:
    """Rounds against what must move and what must be launched."""
    made = [
        (
            row["context"], str(row["draft_tokens"]), row["drafting"], str(row["consumed"]),
            f"{row['bytes'] / 1e6:.0f}", f"{row['bytes_us']:.0f}", str(row["kernels"]),
            f"{row['launch_us']:.0f}", f"{row['round_us']:.0f}", f"{row['over_floor']:.2f}",
        )
        for row in data.rows["floor"]
    ]  # fmt: skip
    columns = ("context", "K", "drafted by", "tokens", "MB to move", "moving, us", "kernels",
               "launching, us", "round, us", "round / larger floor")  # fmt: skip
    return Shown(columns, made) if made else None


def kernels(data: Data) -> Shown | None:
    """The ten kernels that take most of a plain round and of one with three drafts, at 1K."""
    made = []
    for depth, drafting in ((0, "none"), (3, "mtp")):
        own = where(data.rows["kernels"], context="1K", draft_tokens=depth, drafting=drafting)
        for row in sorted(own, key=lambda row: -row["us"])[:10]:
            name = str(row["kernel"])[:60].replace("|", "/")
            made.append((str(depth), f"`{name}`", f"{row['count']:g}", f"{row['us']:.1f}",
                         f"{100 * row['share']:.1f} %"))  # fmt: skip
    return Shown(("K", "kernel", "launches", "us", "share"), made) if made else None


def memory(data: Data) -> Shown | None:
    """Priced against allocated."""
    said = data.figures("memory")
    if not said:
        return None
    parts = [(f"priced: {name}", f"{size:,}") for name, size in said["priced"].items()]
    allocated, before = said["allocated"], said["allocated_before"]
    held = "not seen" if allocated is None else f"{allocated - before:,}"
    reserved = "not seen" if said["reserved"] is None else f"{said['reserved']:,}"
    total = ("priced in all", f"{said['priced_total']:,}")
    rows = [*parts, total, ("allocated", held), ("reserved by the allocator", reserved)]
    return Shown(("what", "bytes"), rows)


def steady(data: Data) -> Shown | None:
    """What the allocator did over many rounds."""
    made = [
        (
            row["arm"], f"{row['rounds']:,}", str(row["allocation.all.allocated"]),
            str(row["allocated_bytes.all.current"]), str(row["reserved_bytes.all.current"]),
        )
        for row in data.rows["memory"]
    ]  # fmt: skip
    columns = ("arm", "rounds", "allocations", "change in bytes allocated", "in bytes reserved")
    return Shown(columns, made) if made else None
