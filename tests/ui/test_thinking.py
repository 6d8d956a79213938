"""What a model thinks on the screen: its end while it thinks, then one line, all on demand."""

from __future__ import annotations

from contextlib import closing

import pytest

from flarechat.config import Settings
from flarechat.launch import open_engine
from flarechat.sessions import store
from flarechat.sessions.session import Session
from flarechat.ui.app import FlarechatApp
from flarechat.ui.opening import LateEngine
from tests.engine.qwen38 import random
from tests.fakes import Play, ScriptedEngine
from tests.ui.harness import answered, chatting, played

PATIENCE_S = 60
THOUGHT = tuple(Play((f"step {n}\n",), channel="thinking") for n in range(9))
SCRIPT = (*THOUGHT, Play(("The", " answer"), width=3, source="mtp"), Play((" is 4.",)))


@played
async def test_thinking_is_shown_while_it_lasts_and_folded_afterwards() -> None:
    async with chatting(ScriptedEngine([SCRIPT]), size=(80, 36)) as chat:
        await chat.say("2 + 2?")
        await chat.beat(9)
        thinking = chat.text
        await chat.answer()
        folded = chat.text
        await chat.press("shift+tab", "t")
        opened = chat.text
        await chat.press("t", "end")

        assert "Thinking" in thinking and "step 7" in thinking and "step 0" not in thinking
        assert "Thought, 63 characters" in folded and "The answer is 4." in folded
        assert "step 1" not in folded
        assert "step 0" in opened and "step 8" in opened and "The answer is 4." in opened
        assert "Thought, 63 characters" in chat.text and "step 8" not in chat.text


@played
async def test_a_turn_without_thinking_says_so() -> None:
    async with chatting(ScriptedEngine([(Play(("Hi.",)),)])) as chat:
        await chat.say("Hello")
        await chat.answer()
        await chat.press("shift+tab", "t")
        said = [note.message for note in chat.app._notifications]

        assert "Thought" not in chat.text
        assert ["This turn has nothing folded."] == said


@played
async def test_thinking_is_saved_and_never_sent_back() -> None:
    engine = ScriptedEngine([SCRIPT])
    async with chatting(engine) as chat:
        await chat.say("2 + 2?")
        await chat.answer()
        await chat.say("And 3 + 3?")
        await chat.answer()
        name = chat.bridge.conversation.name
    sent = [message.content for message in engine.requests[1].messages]
    kept = Session(store.find(name)).tree.path()

    assert ["2 + 2?", "The answer is 4.", "And 3 + 3?"] == sent
    assert "".join(play.pieces[0] for play in THOUGHT) == kept[1].thinking
    assert "The answer is 4." == kept[1].text
    async with chatting(ScriptedEngine(), resume=name) as chat:
        assert "Thought, 63 characters" in chat.text


@pytest.mark.slow
@pytest.mark.parametrize("form", ["bf16", "fp4-local"])
def test_a_random_model_chats_on_the_screen_packed_or_not(form: str) -> None:
    said: dict[bool, str] = {}

    @played
    async def run(mtp: bool) -> None:
        app = FlarechatApp(settings, engine)
        async with app.run_test(size=(120, 36)) as pilot:
            await answered(app, pilot, "abcdefg", PATIENCE_S)
            turn, model = app.bridge.conversation.turns[-1], app.bridge.model
            offered = app.bridge.conversation.totals.summary().by_source
            assert turn.finished is not None
            assert 0 < turn.finished.usage.completion_tokens <= 40
            assert (model.mtp is not None, "mtp" in offered) == (mtp, mtp)
            said[mtp] = turn.thinking + turn.text

    for mtp in (True, False):
        settings = Settings(
            model=str(random.folder(form)), dtype="float32", ctx=512, seed=5, max_tokens=40,
            mtp=mtp, mtp_adaptive_verification=False, history_drafts=False,
        )  # fmt: skip
        with closing(LateEngine(lambda progress, s=settings: open_engine(s, progress))) as engine:  # type: ignore[misc]
            run(mtp)

    assert said[True] == said[False] != ""
