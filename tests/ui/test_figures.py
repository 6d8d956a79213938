"""Figures: units, bars, the meter's views and the lines made of them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from flarechat.chat import Turn
from flarechat.config import Settings
from flarechat.errors import ModelError
from flarechat.protocol import Finished, Loading, Progress, Speculation
from flarechat.telemetry import RoundTotals
from flarechat.ui.format import ASCII, UNICODE, bar, count, fit, sparkline
from flarechat.ui.meter import Meter, View, why_off
from flarechat.ui.widgets.lines import Header, HeaderState, Line, header_text
from flarechat.ui.widgets.panels import (
    DepthPanel,
    compact_lines,
    copy_lines,
    cost_lines,
    depth_lines,
    draft_lines,
    speed_lines,
)
from tests.fakes import Play, ScriptedEngine
from tests.ui.harness import chatting, played


def measured(*plays: Play) -> View:
    """The view after these rounds."""
    totals, meter = RoundTotals(), Meter(lambda: 0.0)
    for index, play in enumerate(plays):
        played = play.round("r", index, 10 * index)
        totals.add(played)
        meter.note(played)
    return meter.view(totals)


@given(st.text(max_size=30), st.integers(0, 40))
def test_fitted_text_has_exactly_the_width_asked_for(text: str, width: int) -> None:
    assert width == cell_len(fit(text, width))


@pytest.mark.parametrize(
    ("value", "shown"), [(812, "812"), (6100, "6.1k"), (32768, "33k"), (1_200_000, "1.2M")]
)
def test_counts_are_short(value: int, shown: str) -> None:
    assert shown == count(value)


def test_bars_and_sparklines_fill_their_width() -> None:
    assert "████" == bar(1.0, 4, UNICODE)
    assert "#   " == bar(0.25, 4, ASCII)
    assert "▁▅█ " == sparkline([0.0, 4.0, 8.0], 4, UNICODE)


def test_reach_and_cond_count_only_rounds_that_offered_the_depth() -> None:
    view = measured(
        Play(("a", "b", "c"), width=3, source="mtp"),
        Play(("a", "b"), width=3, source="mtp"),
        Play(("a", "b"), width=2, source="mtp"),
        Play(("a",), width=3, source="mtp"),
    )
    lines = depth_lines(view, 37, UNICODE)

    assert (4, 2) == view.reached
    assert lines[0].endswith("75|75 ") and lines[1].endswith("33|50 ")


def test_copies_count_what_was_kept_and_remember_the_last() -> None:
    view = measured(
        Play(("a", "b", "c", "d"), width=4, source="history"),
        Play(("a",), width=1),
        Play(("a", "b"), width=5, source="history"),
    )
    lines = copy_lines(view, 60, UNICODE, lambda origin: f"turn {origin}")

    assert ["hit 2/3 rounds  mean 2.0  max 3", "last: 1 of 4 from turn turn-0"] == [
        line.rstrip() for line in lines
    ]


def test_the_gain_is_unknown_until_width_one_was_measured() -> None:
    wide = Play(("a", "b", "c", "d"), width=4, source="mtp", ms=20.0)
    plain = Play(("a",), width=1, ms=10.0)

    assert 0.0 == measured(wide).gain
    assert "x - est" in speed_lines(measured(wide), 40, UNICODE)[0]
    assert pytest.approx(5 / 30 / (1 / 10)) == measured(wide, plain).gain


def test_costs_use_the_median_and_the_yield_of_their_widths() -> None:
    view = measured(*(Play(("a", "b"), width=3, source="mtp", ms=ms) for ms in (10.0, 14.0, 90.0)))

    assert "  2-5       3    14.0     2.00    143" in cost_lines(view, 37, UNICODE)
    assert "last: scripted" in cost_lines(view, 37, UNICODE)[-1]


def test_the_emitted_column_adds_up() -> None:
    view = measured(
        Play(("a", "b", "c"), width=3, source="mtp"), Play(("a",), 2, "history"), Play(("a",))
    )
    rows = [line.split() for line in draft_lines(view, 37, UNICODE)[1:]]
    emitted = [int(row[3]) for row in rows]

    assert sum(emitted[:-1]) == emitted[-1] == view.summary.emitted


@given(st.integers(12, 130), st.booleans())
def test_every_line_keeps_inside_its_width(width: int, ascii_only: bool) -> None:
    marks = ASCII if ascii_only else UNICODE
    view = dataclasses.replace(
        measured(Play(("a", "b", "c"), width=8, source="history")), reason="w" * 200
    )
    header = HeaderState(model="m" * 40, session="s" * 60, used=90, context=100, state="GEN")

    assert width == cell_len(header_text(header, width, marks))
    assert "GEN" in header_text(header, width, marks)
    for line in cost_lines(view, max(width, 37), marks) + depth_lines(view, width, marks):
        assert cell_len(line) <= max(width, 37)


def test_a_context_nearly_full_says_so_in_words() -> None:
    state = HeaderState(model="m", used=85, context=100, state="IDLE")

    assert "85% nearly full" in header_text(state, 100, UNICODE)


def test_the_reason_for_no_drafts_is_given() -> None:
    assert "" == why_off(Speculation(), "no MTP file for this model")
    assert "" == why_off(Speculation(history_drafts=False), "")
    assert "draft tokens set to 0" == why_off(Speculation(draft_tokens=0), "")
    assert "history off, no MTP head" == why_off(Speculation(history_drafts=False), "refused")
    assert "spec off: because" == compact_lines(View(off="because"), 80, UNICODE)[1]


@played
async def test_an_answer_that_was_never_played_keeps_the_context_in_use() -> None:
    async with chatting() as chat:
        await chat.say("go")
        await chat.answer()
        used = chat.bridge.used
        await chat.say("again")
        turn = chat.bridge.engine._live.popleft()
        chat.bridge.engine._events.append(Finished.unplayed(turn.request.id, "cancelled"))
        await chat.beat()

        assert used > 0
        assert used == chat.bridge.used


def test_a_bar_of_one_cell_is_drawn_like_the_others() -> None:
    panel = DepthPanel(UNICODE)
    panel.lines = ["1 ███ 60|60", "2 ▊   10|20"]
    drawn = [panel.render().plain[span.start : span.end] for span in panel.render().spans]

    assert ["███", "▊"] == drawn


def test_both_speeds_of_the_turn_have_the_same_digits() -> None:
    assert speed_lines(View(now=209.8, turn=209.8), 37, UNICODE)[0].startswith(
        "210 tok/s now   210 turn"
    )


@played
async def test_the_header_names_the_file_of_a_model_that_is_loading() -> None:
    engine = ScriptedEngine(failure=ModelError("It is broken."))
    settings = Settings(theme="dark", model="/models/of/some/depth/tiny.gguf")
    async with chatting(engine, settings=settings, size=(120, 36)) as chat:
        assert " flarechat | tiny.gguf | new chat" in chat.text


def test_two_lines_say_that_the_head_is_off_unless_it_drafted_in_this_turn() -> None:
    drafted = measured(Play(("a", "b", "c"), width=4, source="mtp"))
    views = [View(), View(mtp_off="off (/set mtp on)"), drafted]
    views.append(dataclasses.replace(drafted, mtp_off="off (/set mtp on)"))
    said = [compact_lines(view, 80, UNICODE)[1].split("  ")[2] for view in views]

    assert ["mtp 0/0", "mtp off", "mtp 2/3", "mtp 2/3"] == said


@played
async def test_a_restart_shows_its_own_loading_in_whatever_chat() -> None:
    engine = ScriptedEngine()
    async with chatting(engine) as chat:
        engine._events.append(Loading(stage="weights", done=9, total=10))
        await chat.beat()
        chat.bridge.start()
        seen = [chat.bridge.loading.stage]
        await chat.press("ctrl+n")
        seen.append(chat.bridge.state)
        await chat.say("go")
        engine._live.clear()
        engine._events.clear()
        request = engine.requests[-1].id
        engine._events.append(Finished.unplayed(request, "cancelled"))
        await chat.beat()
        seen.append(chat.bridge.state)

        assert ["starting", "LOADING", "LOADING"] == seen


@played
async def test_the_header_says_how_far_a_long_prompt_was_read() -> None:
    engine = ScriptedEngine()
    async with chatting(engine) as chat:
        seen = []
        for done in (30, 70):
            await chat.say("go")
            before = chat.screen.query_one(Header).state.detail
            request = engine._live.popleft().request.id
            engine._events.append(Progress(request=request, done=done, total=100))
            await chat.beat()
            seen.append(("%" in before, chat.screen.query_one(Header).state.detail.split()[0]))
            engine._events.append(Finished.unplayed(request, "cancelled"))
            await chat.beat()

        assert [(False, "30%"), (False, "70%")] == seen


@played
async def test_the_last_line_numbers_the_turn_whose_figures_it_shows() -> None:
    async with chatting() as chat:
        await chat.say("go")
        await chat.answer()
        chat.bridge.conversation.turns.append(Turn(id="u", parent=None, role="user", text="more"))
        chat.screen.dashboard.hurry()
        await chat.beat()

        assert chat.screen.query_one("#last", Line).text.startswith(" #2 ")
