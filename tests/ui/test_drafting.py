"""What the screen says of drafting: panels, reasons, switches and notices."""

from __future__ import annotations

import re

import pytest

from flarechat.config import Settings
from flarechat.protocol import Speculation
from flarechat.ui.meter import View
from flarechat.ui.widgets.panels import CostPanel
from flarechat.ui.widgets.turn import NoteView
from tests.fakes import BARE, Play, ScriptedEngine, words
from tests.ui import scenes
from tests.ui.harness import Chat, chatting, played

NOTICE = "The MTP file /heads/mtp.safetensors is not used: it is cut off inside its header."
SLOWER = "Answers are slower than they could be: the CPU kernels are not built."


def mtp_row(chat: Chat) -> str:
    """What the drafts panel says in the row of the learned head."""
    (row,) = [line for line in chat.text.splitlines() if "│ MTP " in line]
    return row.rpartition("│ MTP ")[2].rstrip("│ ").strip()


def notes(chat: Chat) -> str:
    """All remarks in the chat, as one line."""
    said = (note.render().plain for note in chat.screen.query(NoteView))
    return " ".join(" ".join(said).split())


def last_speculation(chat: Chat) -> Speculation:
    engine = chat.bridge.engine
    assert isinstance(engine, ScriptedEngine)
    return engine.requests[-1].speculation


@played
async def test_the_panels_show_the_figures_of_the_round_totals() -> None:
    async with chatting(scenes.engine(), size=(120, 36)) as chat:
        await chat.say("go")
        await chat.answer()
        await chat.say("again")
        await chat.answer()
        totals, shown = chat.bridge.conversation.totals, chat.text
        source = totals.summary().by_source

        assert totals.emitted == totals.accepted + totals.rounds - totals.clipped
        row = next(line for line in shown.splitlines() if "total  " in line)
        figures = row.split("total")[1].split()
        assert [str(totals.offered), str(totals.accepted), str(totals.emitted)] == figures[:3]
        assert f"{source['mtp'].offered:>7}{source['mtp'].accepted:>9}" in shown
        assert f"{totals.rounds} rounds" in shown
        assert f"{totals.cost_ms(1):.1f}" in shown
        assert f"{totals.emitted} tok " in shown.splitlines()[-2]


@played
async def test_a_copy_names_the_turn_it_came_from() -> None:
    async with chatting(scenes.engine()) as chat:
        await chat.say("go")
        await chat.answer()
        await chat.say("again")
        await chat.beat(3)
        turn = chat.bridge.conversation.turns[1]

        assert "turn #2" == chat.screen.tabs.name_origin(turn.id)
        assert "another chat" == chat.screen.tabs.name_origin("elsewhere")


@played
async def test_drafting_switched_off_shows_a_badge_with_its_reason() -> None:
    async with chatting(size=(120, 36)) as chat:
        await chat.say("/spec off")
        await chat.beat(2)

        assert "SPEC OFF" in chat.text
        assert "draft tokens set to 0" in chat.text


@played
async def test_drafts_of_a_mixed_round_are_counted_by_the_row_they_came_from() -> None:
    mixed = Play(("a", "b", "c", "d"), width=6, source="history+mtp")
    async with chatting(ScriptedEngine([(mixed, Play(("e",)))]), size=(120, 36)) as chat:
        await chat.say("go")
        await chat.answer()
        history = next(line for line in chat.text.splitlines() if "│ history" in line)

        assert ["4", "2", "2", "50%"] == mtp_row(chat).split()
        assert ["1", "1", "1", "100%"] == history.rpartition("history")[2].rstrip("│ ").split()
        assert "hit 1/2 rounds  mean 1.0  max 1" in chat.text


@pytest.mark.parametrize(
    ("mtp", "notices", "said"),
    [
        (True, (), "no MTP file for this model"),
        (False, (), "off (--no-mtp)"),
        (True, (NOTICE,), "refused, see /show info"),
        (True, (SLOWER,), "no MTP file for this model"),
    ],
)
def test_without_a_head_its_row_says_why(mtp: bool, notices: tuple[str, ...], said: str) -> None:
    @played
    async def run() -> None:
        engine = ScriptedEngine(model=BARE, notices=notices)
        settings = Settings(theme="dark", mtp=mtp)
        async with chatting(engine, settings=settings, size=(120, 36)) as chat:
            before = mtp_row(chat)
            await chat.say("/set mtp on")
            await chat.say("go")
            await chat.answer()
            await chat.say("/show spec")
            await chat.say("/show info")
            await chat.beat()

            assert said == before == mtp_row(chat)
            assert f"{said}, history drafts on" in notes(chat)
            assert f"mtp {NOTICE if NOTICE in notices else said}" in notes(chat)
            assert "memory priced 4,000,500 B (weights 4,000,000, caches 500); al" in notes(chat)
            assert "SPEC OFF" not in chat.text

    run()


@played
async def test_a_refused_head_is_told_once_and_again_where_it_is_asked_for() -> None:
    engine = ScriptedEngine(model=BARE, notices=(NOTICE,))
    async with chatting(engine, size=(120, 36)) as chat:
        await chat.say("/restart")
        await chat.beat(2)
        await chat.press("ctrl+n")
        await chat.beat()
        moved_on = notes(chat)
        await chat.say("/show info")
        await chat.beat()

        assert "is not used" not in moved_on
        assert NOTICE in notes(chat)


@played
async def test_a_notice_of_the_engine_is_shown_in_the_chat() -> None:
    engine = ScriptedEngine(model=BARE, notices=(NOTICE,))
    async with chatting(engine, size=(120, 36)) as chat:
        first = notes(chat)
        await chat.say("/restart")
        await chat.beat(2)

        assert NOTICE == first
        assert NOTICE == notes(chat)


@played
async def test_the_whole_reason_of_the_last_width_is_shown_where_it_is_asked_for() -> None:
    async with chatting(ScriptedEngine([words("a b")])) as chat:
        await chat.say("/show spec")
        before = notes(chat)
        await chat.say("go")
        await chat.answer()
        await chat.say("/show spec")
        await chat.beat()

        assert "last round" not in before
        assert notes(chat).endswith("acceptance auto last round: scripted")


@played
async def test_the_longest_reasons_stand_on_the_two_lines_of_the_panel() -> None:
    async with chatting(size=(120, 36)) as chat:
        panel = chat.screen.query_one(CostPanel)
        for reason in (
            "3 copied + 4 mtp drafts: 4.6 tok in 138 ms vs 1.0 in 122 without",
            "3 of 7 copied drafts: 3.2 tok in 140 ms vs 3.1 in 151 with mtp",
            "no draft: 1.0 tok in 122 ms vs 1.9 in 248 with 3 copied + 4 mtp",
            "probe: 3 copied + 4 mtp drafts, last timed 512 rounds ago",
            "fixed width: 3 copied + 4 mtp drafts",
        ):
            panel.show(View(reason=reason))
            await chat.pilot.pause()
            shown = " ".join(chat.text[chat.text.index("last: ") :].split("\n")[:2])

            assert reason in " ".join(re.sub("[╰╯─│]", "", shown).split())


@played
async def test_mtp_is_switched_for_the_next_turn_while_its_head_stays_loaded() -> None:
    async with chatting(ScriptedEngine([words("a b")]), size=(120, 36)) as chat:
        seen = []
        for value in ("off", "on"):
            await chat.say(f"/set mtp {value}")
            await chat.say("go")
            await chat.answer()
            seen.append((last_speculation(chat).mtp, mtp_row(chat)))
        await chat.say("/show info")
        await chat.beat()

        assert [(False, "off (/set mtp on)"), (True, "0        0       0    -")] == seen
        assert "mtp scripted-mtp.safetensors (0.1 M parameters, 128 draft tokens) session" in notes(
            chat
        )


@pytest.mark.parametrize(
    ("bare", "mtp", "said"),
    [
        (False, "off", "MTP and history are off"),
        (True, "on", "history off, no MTP head"),
        (False, "on", ""),
    ],
)
def test_with_history_off_drafting_is_off_unless_a_head_drafts(
    bare: bool, mtp: str, said: str
) -> None:
    @played
    async def run() -> None:
        engine = ScriptedEngine(model=BARE) if bare else ScriptedEngine()
        async with chatting(engine, size=(120, 36)) as chat:
            await chat.say("/set history_drafts off")
            await chat.say(f"/set mtp {mtp}")
            await chat.say("/show spec")
            await chat.beat(2)

            assert bool(said) == ("SPEC OFF" in chat.text)
            assert (f"Spec off: {said}" if said else "Drafts: this turn") in chat.text
            assert (f"speculation off: {said}" if said else "history drafts off") in notes(chat)

    run()
