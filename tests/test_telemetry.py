"""Totals of rounds whose drafts come from several sources add up, whatever was accepted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flarechat.protocol import MAX_DRAFT_TOKENS, Round
from flarechat.telemetry import RoundTotals

FIELDS = ("offered", "accepted", "emitted")


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """A round of forced drafts, copies and the chain's, or some of them, clipped or not."""
    forced = draw(st.integers(0, MAX_DRAFT_TOKENS))
    copied = draw(st.integers(0, MAX_DRAFT_TOKENS - forced))
    learned = draw(st.integers(0, MAX_DRAFT_TOKENS - forced - copied))
    name = draw(st.sampled_from(["history", "context"]))
    drafts = ("grammar",) * forced + (name,) * copied + ("mtp",) * learned
    offered = len(drafts)
    accepted = draw(st.integers(forced, offered))
    emitted = draw(st.integers(1, accepted + 1))
    tail = "bonus" if accepted == offered else "correction"
    return Round(
        request="r",
        index=0,
        width=offered + 1,
        source="+".join(dict.fromkeys(drafts)) or "none",
        offered=offered,
        accepted=accepted,
        emitted=emitted,
        clipped=accepted + 1 - emitted,
        draft_sources=drafts,
        sources=(*drafts[:accepted], tail)[:emitted],
        ms=10.0,
        context=9,
        reason="",
        tokens=tuple(range(emitted)),
        repair_ms=draw(st.sampled_from((0.0, 0.5, 2.0))),
    )


@given(st.lists(rounds(), max_size=30))
def test_sums_by_source_and_by_depth_equal_the_totals(played: list[Round]) -> None:
    totals = RoundTotals()
    for one in played:
        totals.add(one)
    summary = totals.summary()

    for field in FIELDS:
        every = sum(getattr(one, field) for one in played)
        assert every == getattr(summary, field)
        assert every == sum(getattr(source, field) for source in summary.by_source.values())
    for field in FIELDS[:2]:
        assert getattr(summary, field) == sum(getattr(depth, field) for depth in summary.by_depth)
    assert summary.emitted == summary.accepted + summary.rounds - summary.clipped
    assert summary.repair_ms == sum(one.repair_ms for one in played)
    assert summary.rounds == sum(summary.acceptance_histogram)
    for source in ("grammar", "mtp", "history", "context"):
        offered = sum(one.draft_sources.count(source) for one in played)
        kept = sum(one.draft_sources[: one.accepted].count(source) for one in played)
        told = summary.by_source.get(source)
        assert (offered, kept) == ((told.offered, told.accepted) if told else (0, 0))
