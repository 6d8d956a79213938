"""The token inspector: which round a token came in, where it came from, and how it is drawn."""

from __future__ import annotations

import dataclasses
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.pilot import Pilot

from flarechat.chat import Turn
from flarechat.protocol import Round, Started, TokenLogprob
from flarechat.sessions import store
from flarechat.ui.format import ASCII, UNICODE
from flarechat.ui.played import Played, round_at
from flarechat.ui.screens.tokens import TokensScreen
from flarechat.ui.widgets.tokens import LINES, LONGEST, STYLES, TokenGrid, cell, escaped
from tests.fakes import BARE, Play, ScriptedEngine, words
from tests.ui import scenes
from tests.ui.harness import Chat, chatting, check_snapshot, played

LETTERS = "mhc-+?"
PLAYS = (
    Play(("one ", "two ", "three "), width=4, source="mtp"),
    Play(("four ", "five\n", "six "), width=3, source="history"),
    Play(("seven",)),
)
TEXTS = dict(enumerate((" one", " two", " three", " four", " five\n", " six", "<|end|>"), start=12))


def engine(**about: object) -> ScriptedEngine:
    scripted = ScriptedEngine([PLAYS], **about)  # type: ignore[arg-type]
    scripted.texts = TEXTS
    return scripted


async def inspected(chat: Chat) -> TokensScreen:
    """The inspector over the last answer, its texts there."""
    await chat.press("shift+tab", "i")
    return await looked(chat)


async def looked(chat: Chat) -> TokensScreen:
    screen = chat.app.screen
    assert isinstance(screen, TokensScreen)
    await chat.beat()
    screen.look()
    await chat.pilot.pause()
    return screen


# Which round a token came in


def asked(turn: Turn, drafts: int, emitted: int, letters: str) -> Round:
    made = Play(("x",) * emitted, width=drafts + 1, source="mtp").round(turn.id, 0, 0)
    return dataclasses.replace(made, offered=drafts, accepted=emitted - 1)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8)), max_size=12), st.integers(0, 12))
def test_every_token_is_in_one_round_however_many_were_played_here(
    shapes: list[tuple[int, int]], seen: int
) -> None:
    turn, rounds, owner = Turn(id="a", parent=None, role="assistant", text=""), Played(), []
    for number, (drafts, emitted) in enumerate(shapes):
        event = asked(turn, max(drafts, emitted - 1), emitted, "")
        if number >= seen:
            rounds.note(turn, event)
        turn.tokens += range(emitted)
        turn.sources += "m" * (emitted - 1) + "+"
        owner += [number] * emitted
    found = rounds.rounds(turn)

    assert owner == [round_at(found, at) for at in range(len(turn.tokens))]
    assert all((one.offered is None) == (n < seen) for n, one in enumerate(found))


def test_a_round_that_was_let_go_with_the_end_of_an_answer_is_of_it_no_more() -> None:
    turn, rounds = Turn(id="a", parent=None, role="assistant", text=""), Played()
    for emitted in (3, 3):
        rounds.note(turn, asked(turn, 2, emitted, ""))
        turn.tokens += [0] * emitted
        turn.sources += "mm+"
    started = Started(
        request="a", prompt_tokens=9, restored_tokens=0, context=9, max_tokens=9, acceptance="",
        sampling=None, speculation=None, continued=(0,) * 4,
    )  # fmt: skip
    rounds.note(turn, started)
    turn.tokens, turn.sources = turn.tokens[:4], turn.sources[:4]
    rounds.note(turn, asked(turn, 2, 2, ""))
    turn.tokens, turn.sources = [*turn.tokens, 0, 0], turn.sources + "m+"

    assert [(0, 3, 2), (3, 1, None), (4, 2, 2)] == [
        (one.first, one.emitted, one.offered) for one in rounds.rounds(turn)
    ]


def test_of_an_answer_that_goes_on_in_other_tokens_no_round_is_left() -> None:
    turn, rounds = Turn(id="a", parent=None, role="assistant", text=""), Played()
    rounds.note(turn, asked(turn, 2, 3, ""))
    turn.tokens, turn.sources = [1, 2, 3], "mm+"
    started = Started(
        request="a", prompt_tokens=9, restored_tokens=0, context=9, max_tokens=9, acceptance="",
        sampling=None, speculation=None, continued=(1, 2, 4, 5),
    )  # fmt: skip
    rounds.note(turn, started)
    turn.tokens, turn.sources = [1, 2, 4, 5], "????"
    rounds.note(turn, asked(turn, 2, 2, ""))
    turn.tokens, turn.sources = [*turn.tokens, 0, 0], turn.sources + "m+"

    assert [(0, 4, None), (4, 2, 2)] == [
        (one.first, one.emitted, one.offered) for one in rounds.rounds(turn)
    ]


# How a token is written


@given(st.text(max_size=40), st.sampled_from([UNICODE, ASCII]))
def test_a_cell_is_one_line_of_what_a_terminal_shows(text: str, marks: object) -> None:
    shown = cell(text, marks)  # type: ignore[arg-type]

    assert shown and "\n" not in shown and " " not in shown.rstrip()
    assert all(letter.isprintable() for letter in shown)
    assert 1 <= cell_len(shown) <= LONGEST


def test_what_cannot_be_seen_is_escaped() -> None:
    assert "a\\n\\t\\x1b\\u200d\\u0301é" == escaped("a\n\t\x1b\u200d\u0301é")
    assert ("·the", "_the", "…", "?") == (
        cell(" the", UNICODE), cell(" the", ASCII), cell("", UNICODE), cell(None, UNICODE),
    )  # fmt: skip


# The screen


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
def test_the_inspector_looks_as_stored(size: tuple[int, int]) -> None:
    @played
    async def run() -> None:
        scripted = ScriptedEngine([scenes.speculative(scenes.ANSWER)])
        pieces = scenes.pieces(scenes.ANSWER)
        scripted.texts = dict(enumerate(pieces, start=12))
        async with chatting(scripted, size=size) as chat:
            await chat.say(scenes.QUESTION)
            await chat.answer()
            await inspected(chat)
            await chat.press("n", "n", "n", "right")

            check_snapshot(f"tokens-{size[0]}x{size[1]}", chat.text)

    run()


@played
async def test_what_is_known_of_a_token_is_said_and_moves_with_the_cursor() -> None:
    async with chatting(engine()) as chat:
        await chat.say("go")
        await chat.answer()
        screen = await inspected(chat)
        seen = [chat.text]
        for key in ("right", "n", "right", "n", "G"):
            await chat.press(key)
            seen.append(chat.text)

        assert "Tokens of #2: 7 in 3 rounds" in seen[0]
        assert "m MTP 2  h history 2  - correction 1  + own 2" in seen[0]
        assert 'token 1 of 7   id 12   " one"' in seen[0]
        assert "source m drafted by the MTP head" in seen[0]
        assert "round 1 of 3, its token 1 of 3: 2 of 3 drafts accepted" in seen[0]
        assert "probability not asked for" in seen[0]
        assert 'id 13   " two"' in seen[1]
        assert "source - the model's own, in place of a draft it refused" in seen[2]
        assert "source h copied from another chat, 1 of 2 in a row" in seen[3]
        assert "round 2 of 3, its token 3 of 3: 2 of 2 drafts accepted" in seen[4]
        assert 'token 7 of 7   id 18   "<|end|>"' in seen[5]
        assert "round 3 of 3, its token 1 of 1: 0 of 0 drafts accepted" in seen[5]
        assert [tuple(TEXTS)] == chat.bridge.engine.asked_texts  # type: ignore[attr-defined]
        await chat.press("escape")
        assert screen is not chat.app.screen and chat.screen.transcript.has_focus


@played
async def test_letters_stand_below_every_token_and_a_line_of_the_answer_ends_a_row() -> None:
    async with chatting(engine()) as chat:
        await chat.say("go")
        await chat.answer()
        await inspected(chat)
        rows = chat.text.splitlines()
        top = next(n for n, line in enumerate(rows) if "·one" in line)

        assert "·one ·two ·three ·four ·five\\n" == rows[top].strip()
        assert "m^   m    -      h     h" == rows[top + 1].strip()
        assert ["·six <|end|>", "+    +"] == [row.strip() for row in rows[top + 2 : top + 4]]


@played
async def test_the_mouse_and_the_keys_find_the_token_above_or_below() -> None:
    async with chatting(engine()) as chat:
        await chat.say("go")
        await chat.answer()
        screen = await inspected(chat)
        grid = screen.query_one(TokenGrid)
        await chat.press("right", "right", "down")
        below = grid.cursor
        await chat.press("up", "N")
        back = grid.cursor
        rows = chat.text.splitlines()
        row = next(n for n, line in enumerate(rows) if "<|end|>" in line)
        await chat.pilot.click(offset=(rows[row].index("end"), row))
        await chat.pilot.pause()

        assert (6, 0) == (below, back)
        assert 6 == grid.cursor


@played
async def test_probabilities_are_shown_where_they_were_asked_for() -> None:
    other = TokenLogprob(id=5, token=" uno", logprob=-2.0)
    told = TokenLogprob(id=12, token=" one", logprob=-0.1, top=(other,))

    class Telling(ScriptedEngine):
        def drain(self) -> list[object]:  # type: ignore[override]
            return [
                dataclasses.replace(event, logprobs=(told,) * event.emitted)
                if isinstance(event, Round)
                else event
                for event in super().drain()
            ]

    async with chatting(Telling([PLAYS])) as chat:
        await chat.say("go")
        await chat.answer()
        await inspected(chat)

        assert 'probability 90.5% (log -0.100)   " uno" 13.5%' in chat.text


@played
async def test_an_answer_of_an_earlier_run_tells_its_rounds_by_letters() -> None:
    async with chatting(engine()) as chat:
        await chat.say("go")
        await chat.answer()
        name = chat.bridge.conversation.name
    async with chatting(engine(), resume=name) as chat:
        await inspected(chat)

        assert "Tokens of #2: 7 in 3 rounds" in chat.text
        assert "its token 1 of 3: how many drafts it had was not saved" in chat.text
        assert '" one"' in chat.text


@played
async def test_tokens_of_a_model_that_is_not_loaded_are_numbers() -> None:
    async with chatting(engine()) as chat:
        await chat.say("go")
        await chat.answer()
        name = chat.bridge.conversation.name
    other = engine(model=dataclasses.replace(BARE, fingerprint="e" * 64))
    async with chatting(other, resume=name) as chat:
        await inspected(chat)

        assert "of a model that is not loaded: numbers only" in chat.text
        assert "id 12   text not known" in chat.text
        assert [] == other.asked_texts


@played
async def test_turns_without_tokens_say_so() -> None:
    scenes.save_chat("old")
    path = store.find("old")
    text = path.read_text("utf-8")
    path.write_text(text.replace('"tokens"', '"unknown"'), "utf-8")
    async with chatting(resume="old") as chat:
        await chat.say("/tokens")
        await chat.say("/tokens 1")
        await chat.beat()

        assert "This answer was saved without its tokens." in chat.text
        assert "Only answers have tokens to look at." in chat.text


@played
async def test_an_answer_under_way_grows_in_the_inspector() -> None:
    async with chatting(ScriptedEngine([words("a b c d e f")])) as chat:
        await chat.say("go")
        await chat.beat(3)
        await inspected(chat)
        few = chat.app.screen.query_one(TokenGrid).virtual_size
        early = chat.text
        await chat.beat(3)
        await looked(chat)

        assert "of 6" not in early and "token 1 of 6" in chat.text
        assert few.height == LINES


@played
async def test_ten_thousand_tokens_stay_fluid() -> None:
    async with chatting(engine(), size=(120, 36)) as chat:
        await chat.say("go")
        await chat.answer()
        turn = chat.bridge.conversation.turns[-1]
        turn.tokens, turn.sources = [12, 13, 14, 15, 17] * 2000, "mm-h+" * 2000
        screen = await inspected(chat)
        took = [await timed(chat.pilot, key) for key in ("G", "g", "pagedown", "down", "right")]
        began = time.process_time()
        screen._shown = None
        screen.look()
        looking = time.process_time() - began

        assert "10000 in" in chat.text
        assert sorted(took)[2] < 0.15, took
        assert looking < 0.25, looking


@played
async def test_the_colours_follow_the_theme() -> None:
    async with chatting(engine()) as chat:
        await chat.say("go")
        await chat.answer()
        grid = (await inspected(chat)).query_one(TokenGrid)
        seen = []
        for theme in ("textual-dark", "textual-light"):
            chat.app.theme = theme
            await chat.pilot.pause()
            seen.append([grid._look(STYLES[letter]) for letter in "mhc-+"])
        dark, light = seen

        assert all(a != b for a, b in zip(dark, light, strict=True))
        assert len(set(map(str, dark))) == len(set(map(str, light))) == 5


async def timed(pilot: Pilot[None], key: str) -> float:
    """Processor seconds that a key takes."""
    began = time.process_time()
    await pilot.press(key)
    return time.process_time() - began


@played
async def test_a_copy_names_the_turn_it_came_from_in_this_tab_or_another() -> None:
    async with chatting(ScriptedEngine([words("a b"), PLAYS])) as chat:
        await chat.say("first words")
        await chat.answer()
        origin = chat.bridge.conversation.turns[1].id
        await chat.say("go")
        await chat.answer()
        turn = chat.bridge.conversation.turns[-1]
        turn.copied = [(first, count, origin) for first, count, _ in turn.copied]
        here = chat.screen.tabs.name_origin(origin)
        await inspected(chat)
        await chat.press("n", "n", "right")
        shown = chat.text
        await chat.press("escape", "ctrl+n")

        assert "turn #2" == here
        assert "copied from turn #2, 2 of 2 in a row" in shown
        assert "turn #2 of first words" == chat.screen.tabs.name_origin(origin)
