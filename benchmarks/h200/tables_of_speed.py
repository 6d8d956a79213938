"""The tables of speed: arms, drafts, widths, peers, lanes. Owns how a rate is derived."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.h200.rows import Data, Row, Shown, contexts_of, distinct, median_rate, where


def speed(law: str) -> Callable[[Data], Shown | None]:
    """Median tokens a second by arm and context, and against off."""

    def table(data: Data) -> Shown | None:
        rows = where(data.rows["speed"], law=law)
        contexts = contexts_of(rows)
        made = []
        for (arm,) in distinct(rows, "arm"):
            cells = [arm]
            for context in contexts:
                rate = median_rate(where(rows, arm=arm, context=context))
                off = median_rate(where(rows, arm="off", context=context))
                cells.append("" if rate is None else f"{rate:,.0f}{_times(rate, off)}")
            made.append(tuple(cells))
        return Shown(("arm", *contexts), _by_arm(made)) if made else None

    return table


def in_all(law: str) -> Callable[[Data], Shown | None]:
    """Tokens of all answers over the seconds of all, by arm and context, and against off."""

    def table(data: Data) -> Shown | None:
        rows = where(data.rows["speed"], law=law)
        contexts, made = contexts_of(rows), []
        for (arm,) in distinct(rows, "arm"):
            rates = [_whole(where(rows, arm=arm, context=context)) for context in contexts]
            plain = [_whole(where(rows, arm="off", context=context)) for context in contexts]
            cells = (
                "" if rate is None else f"{rate:,.0f}{_times(rate, off)}"
                for rate, off in zip(rates, plain, strict=True)
            )
            made.append((str(arm), *cells))
        return Shown(("arm", *contexts), _by_arm(made)) if made else None

    return table


def _whole(rows: list[Row]) -> float | None:
    seconds = sum(row["seconds"] for row in rows)
    return sum(row["tokens"] for row in rows) / seconds if seconds else None


def _times(rate: float, off: float | None) -> str:
    return f" ({rate / off:.2f}x)" if off else ""


def _by_arm(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The baseline first, then by name."""
    return sorted(rows, key=lambda row: (row[0] != "off", row[0].startswith("adaptive"), row[0]))


def drafts(law: str) -> Callable[[Data], Shown | None]:
    """Tokens a round and the share of drafts kept, by arm and context."""

    def table(data: Data) -> Shown | None:
        rows = where(data.rows["speed"], law=law)
        contexts, made = contexts_of(rows), []
        for (arm,) in distinct(rows, "arm"):
            cells = [arm]
            for context in contexts:
                own = where(rows, arm=arm, context=context)
                emitted, rounds = (sum(row[c] for row in own) for c in ("tokens", "rounds"))
                offered, kept = (sum(row[c] for row in own) for c in ("offered", "accepted"))
                share = f", {100 * kept / offered:.0f} %" if offered else ""
                cells.append(f"{emitted / rounds:.2f}{share}" if rounds else "")
            made.append(tuple(cells))
        return Shown(("arm", *contexts), _by_arm(made)) if made else None

    return table


def widths(data: Data) -> Shown | None:
    """Median round time by drafts and context, of the arms with one width."""
    rows = [
        row
        for row in where(data.rows["widths"], law="ratio")
        if row["arm"] == "off" or row["arm"] == f"fixed-{row['width'] - 1}"
    ]
    contexts, made = contexts_of(rows), []
    for (width,) in sorted(distinct(rows, "width")):
        found = [where(rows, width=width, context=context) for context in contexts]
        made.append(
            (str(width - 1), *(f"{own[0]['median_ms']:.3f}" if own else "" for own in found))
        )
    return Shown(("K", *(f"{c}, ms" for c in contexts)), made) if made else None


def transformers(data: Data) -> Shown | None:
    """generate() by way and context, and how much faster the engine's arms are."""
    rows, ours = data.rows["transformers"], where(data.rows["speed"], law="ratio")
    contexts, made = contexts_of(rows), []
    for (way,) in distinct(rows, "way"):
        rates = [median_rate(where(rows, way=way, context=context)) for context in contexts]
        made.append((way, *("" if rate is None else f"{rate:,.0f}" for rate in rates)))
    best = [_best(rows, context) for context in contexts]
    for arm in ("off", "adaptive", "adaptive+history"):
        rates = [median_rate(where(ours, arm=arm, context=context)) for context in contexts]
        if any(rate is not None for rate in rates):
            pairs = zip(rates, best, strict=True)
            made.append((f"flarechat {arm}", *("" if r is None else f"{r:,.0f}{_times(r, b)}"
                                               for r, b in pairs)))  # fmt: skip
    return Shown(("tok/s", *contexts), made) if made and rows else None


def _best(rows: Iterable[Row], context: str) -> float | None:
    """The fastest way's median at a context."""
    own = where(rows, context=context)
    rates = [median_rate(where(own, way=way)) for (way,) in distinct(own, "way")]
    return max((rate for rate in rates if rate is not None), default=None)


def lanes(data: Data) -> Shown | None:
    """Tokens a second of all requests together."""
    rows = data.rows["lanes"]
    counts = sorted(count for (count,) in distinct(rows, "lanes"))
    made = []
    for (arm,) in distinct(rows, "arm"):
        rates = [median_rate(where(rows, arm=arm, lanes=count)) for count in counts]
        one = rates[0]
        made.append((arm, *("" if r is None else f"{r:,.0f}{_times(r, one)}" for r in rates)))
    return Shown(("arm", *(f"B = {count}" for count in counts)), made) if made else None
