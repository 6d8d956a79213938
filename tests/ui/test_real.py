"""The whole way once: keys into the screen, the real model behind its process, words out."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from flarechat.config import Settings
from flarechat.launch import open_engine
from flarechat.ui.app import FlarechatApp
from flarechat.ui.opening import LateEngine
from tests.ui.harness import answered, played

PATIENCE_S = 120


@pytest.mark.network
@pytest.mark.slow
def test_a_question_typed_into_the_chat_is_answered_by_the_real_model(smollm2: Path) -> None:
    @played
    async def run() -> None:
        app = FlarechatApp(settings, engine)
        async with app.run_test(size=(120, 36)) as pilot:
            await answered(app, pilot, "What is the capital of France?", PATIENCE_S)
            turn = app.bridge.conversation.turns[-1]

            assert "Paris" in turn.text
            assert turn.finished is not None
            assert app.bridge.conversation.totals.emitted == turn.finished.usage.completion_tokens
            assert "IDLE" == app.bridge.state

    settings = Settings(model=str(smollm2), temperature=0.0, max_tokens=24)
    with closing(LateEngine(lambda progress: open_engine(settings, progress))) as engine:
        run()
