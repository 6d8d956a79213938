"""What is said of a prompt: what was restored and from where, what is computed, how fast."""

from __future__ import annotations

import pytest

from flarechat.protocol import Event, Progress, Round
from flarechat.ui.prefill import Prefill, prompt_figures, prompt_text
from tests.fakes import ScriptedEngine
from tests.ui.harness import chatting, played


class Slow(ScriptedEngine):
    """Tells of the first half of what is left of a prompt before it goes on."""

    def drain(self) -> list[Event]:
        events = super().drain()
        if any(isinstance(event, Progress) for event in events):
            return [self._half(event) for event in events]
        return events

    def _half(self, event: Event) -> Event:
        if not isinstance(event, Progress):
            return event
        restored = self.restored[0]
        done = restored + (event.total - restored) // 2
        return Progress(request=event.request, done=done, total=event.total)


@pytest.mark.parametrize(
    ("prompt", "speed", "said", "figures"),
    [
        (Prefill(), 0.0, "", ""),
        (Prefill(12), 0.0, "Prompt of 12 tokens: 0 of 12 computed", "prompt 12 new"),
        (
            Prefill(1240, 1180, "memory", 30), 412.4,
            "Prompt of 1,240 tokens: 1,180 restored from memory, 30 of 60 computed, 412 tok/s",
            "prompt 1.2k memory + 60 new",
        ),
        (
            Prefill(1240, 1180, "disk", 60), 96.2,
            "Prompt of 1,240 tokens: 1,180 restored from disk, 60 computed, 96.2 tok/s",
            "prompt 1.2k disk + 60 new",
        ),
        (
            Prefill(9, 9, "slot"), 0.0,
            "Prompt of 9 tokens: 9 restored from a slot", "prompt 9 slot + 0 new",
        ),
    ],
)  # fmt: skip
def test_a_prompt_is_told_in_a_sentence_and_in_few_words(
    prompt: Prefill, speed: float, said: str, figures: str
) -> None:
    assert (said, figures) == (prompt_text(prompt, speed), prompt_figures(prompt))


@played
async def test_the_prompt_is_told_while_it_is_computed_and_in_the_panels_after() -> None:
    engine = Slow(prompt_tokens=212, restored=(200, "disk"))
    async with chatting(engine, size=(120, 36)) as chat:
        await chat.say("go")
        await chat.beat()
        during = chat.text
        await chat.answer()
        turn_speed = chat.bridge.view().prefill

        assert "Prompt of 212 tokens: 200 restored from disk, 6 of 12 computed" in during
        assert "prompt 200 disk + 12 new" in during
        assert "Prompt of" not in chat.text and "Hello there." in chat.text
        assert "prompt 200 disk + 12 new" in chat.text
        assert 12 / 0.02 == turn_speed


@played
async def test_the_rate_counts_what_is_computed_and_not_what_was_restored() -> None:
    class Late(Slow):
        def drain(self) -> list[Event]:
            events = super().drain()
            if any(isinstance(event, Round) for event in events) and not self.told:
                self.told = True
                told = Progress(request=self.requests[0].id, done=208, total=212)
                return [told]
            return events

        told = False

    engine = Late(prompt_tokens=212, restored=(200, "slot"))
    async with chatting(engine) as chat:
        await chat.say("go")
        await chat.beat(2)

        assert "200 restored from a slot, 8 of 12 computed, 32.0 tok/s" in chat.text
