"""Measures what a live interface costs the engine: the same answer without one and with one.

Owns a small Textual application that does what a chat does while an answer streams, ten times a
second: drain the door, append the text to a Markdown widget, redraw the figures. It runs
headless in this process, drafts are off (so no answer is copied from the one before), and the
order turns round from repeat to repeat. Knows nothing of the real screens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from flarechat.bench.arms import BASELINE, parse_arms
from flarechat.bench.runner import Answer, Notice, Requests, ask, checked, wait_ready
from flarechat.bench.summary import Spread
from flarechat.bench.workloads import Workload
from flarechat.config import Settings
from flarechat.errors import EngineError
from flarechat.protocol import Delta, EngineDoor, Failed, Finished, Request, Round
from flarechat.telemetry import RoundTotals

if TYPE_CHECKING:
    from textual.app import App

DRAIN_SECONDS = 0.1


@dataclass(slots=True)
class UiTax:
    """Tokens a second without and with an interface; `ratio` below 1 is what the latter costs."""

    headless: list[float]
    with_ui: list[float]

    @property
    def ratio(self) -> Spread | None:
        """With over without, paired by repeat; None before the first pair."""
        pairs = zip(self.headless, self.with_ui, strict=False)
        ratios = [with_ui / headless for headless, with_ui in pairs if headless]
        return Spread.of(ratios) if ratios else None

    def sentence(self) -> str:
        """The result in words."""
        ratio = self.ratio
        if ratio is None:
            return "Nothing was measured."
        return (
            f"Without an interface {median(self.headless):.1f} tok/s, with one draining at "
            f"{1 / DRAIN_SECONDS:.0f} Hz {median(self.with_ui):.1f} tok/s: {ratio.median:.3f}x "
            f"({ratio.low:.3f}-{ratio.high:.3f}), paired by repeat."
        )


def measure_ui_tax(
    settings: Settings,
    door: EngineDoor,
    workload: Workload,
    repeats: int,
    *,
    into: UiTax,
    notice: Notice,
) -> None:
    """Answer `workload` both ways in every repeat, adding rates to `into`."""
    model = wait_ready(door).model
    plain = parse_arms(BASELINE, settings.speculation())[0].speculation
    build = Requests(settings, model, plain)
    ask(door, build.warm_up("warm-ui-tax"))
    for repeat in range(repeats):
        for shown in (False, True) if repeat % 2 == 0 else (True, False):
            name = f"{'ui' if shown else 'headless'}-{repeat}"
            request = build.request(name, 0, workload, None)
            answer = ask_with_ui(door, request) if shown else ask(door, request)
            rate = answer.finished.timings.tokens_per_second
            (into.with_ui if shown else into.headless).append(rate)
            notice(f"repeat {repeat + 1}/{repeats}  {name}  {rate:.1f} tok/s")


def ask_with_ui(door: EngineDoor, request: Request) -> Answer:
    """Put one request to the door and let a headless application drain it to its end.

    Textual turns an interrupt into an ordinary return without a result; here it is one again.
    """
    door.submit(request)
    app = _drainer(door, request)
    answer = app.run(headless=True, size=(120, 36))
    if answer is None:
        door.cancel(request.id)
        if app.return_code:
            raise EngineError("The measuring interface broke down; its report is above.")
        raise KeyboardInterrupt
    if isinstance(answer, Failed):
        raise answer.error.exception()
    return replace(answer, finished=checked(answer.finished))


def _drainer(door: EngineDoor, request: Request) -> App[Answer | Failed]:
    """The application; made here so that nothing else of the bench loads Textual."""
    from textual.app import App, ComposeResult
    from textual.containers import VerticalScroll
    from textual.widgets import Markdown, Static

    class Drainer(App[Answer | Failed]):
        """Streams one answer as a chat would."""

        def __init__(self) -> None:
            super().__init__()
            self.rounds: list[Round] = []
            self.totals = RoundTotals()

        def compose(self) -> ComposeResult:
            yield Static(id="figures")
            with VerticalScroll():
                yield Markdown(id="answer")

        def on_mount(self) -> None:
            self.query_one(VerticalScroll).anchor()
            self.set_interval(DRAIN_SECONDS, self.drain)

        async def drain(self) -> None:
            events = door.drain()
            for event in events:
                if isinstance(event, Failed):
                    self.exit(event)
                if isinstance(event, Round):
                    self.rounds.append(event)
                    self.totals.add(event)
                if isinstance(event, Finished) and event.request == request.id:
                    self.exit(Answer(tuple(self.rounds), event))
            await self.show("".join(e.text for e in events if isinstance(e, Delta)))

        async def show(self, text: str) -> None:
            if text:
                await self.query_one(Markdown).append(text)
            rate, kept = self.totals.tokens_per_second(), self.totals.accepted
            self.query_one("#figures", Static).update(f"{rate:.1f} tok/s  {kept} accepted")

    return Drainer()
