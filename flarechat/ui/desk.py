"""Carries out slash commands on the chat screen. Knows how, not what a line means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flarechat.chat import Turn
from flarechat.config import Settings
from flarechat.errors import FlarechatError, UsageError
from flarechat.models.sidecars import is_refusal
from flarechat.protocol import ModelInfo
from flarechat.ui import choices, slash, themes
from flarechat.ui.beat import Beat
from flarechat.ui.holding import Holding

if TYPE_CHECKING:
    from flarechat.ui.screens.chat import ChatScreen


class Desk(Holding):
    """One method a command; every failure is told, none is raised."""

    async def run(self, command: slash.Invocation) -> None:
        """Carry out one command."""
        try:
            await getattr(self, f"_{command.name}")(command.argument)
        except FlarechatError as error:
            self._screen.tell(error)

    def adopt(self, settings: Settings | None) -> None:
        """Make changed settings the ones of the next turn."""
        if settings is None or settings == self._screen.bridge.settings:
            return
        screen = self._screen
        screen.app.theme = themes.choose(settings.theme)
        screen.bridge.settings = settings
        screen.tabs.adopt_theme(settings.theme)
        self._screen.remark("The next turn uses these settings.")

    async def _new(self, argument: str) -> None:
        await self._screen.action_new_chat()

    async def _clear(self, argument: str) -> None:
        await self._screen.clear()

    async def _tab(self, argument: str) -> None:
        tabs = self._screen.tabs
        if not argument:
            rows = (f"{n} {pane.state.title}" for n, pane in enumerate(tabs.panes, start=1))
            self._screen.transcript.note("\n".join(rows))
        elif argument.isascii() and argument.isdigit():
            await tabs.go(int(argument) - 1)
        elif argument in ("next", "prev"):
            await tabs.step(1 if argument == "next" else -1)
        elif argument in ("new", "close"):
            await (tabs.new() if argument == "new" else tabs.close())
        else:
            raise UsageError(f"/tab {argument} is unknown.", "Give N, new, next, prev or close.")

    async def _fan(self, argument: str) -> None:
        number, _, text = argument.partition(" ")
        screen = self._screen
        try:
            if not (number.isascii() and number.isdigit()):
                raise UsageError("/fan needs a number.", "Write /fan N and a message, N 2 to 4.")
            screen.bridge.fan(text.strip(), int(number))
        except FlarechatError:
            screen.prompt.put_back(f"/fan {argument}".rstrip())
            raise
        if text.strip():
            screen.show_beat(Beat())
        else:
            await screen.show_conversation()
        screen.transcript.follow()
        screen.tabs.current.focus()
        screen.tabs.refresh()

    async def _pick(self, argument: str) -> None:
        if not (argument.isascii() and argument.isdigit()):
            raise UsageError("/pick needs the number of an answer.", "Write /pick N.")
        self._screen.bridge.pick(int(argument) - 1)
        self._screen.picked()

    async def _edit(self, argument: str) -> None:
        await self._screen.verbs.edit(self._turn(argument, "user"))

    async def _regen(self, argument: str) -> None:
        await self._screen.verbs.regenerate(self._turn(argument))

    async def _continue(self, argument: str) -> None:
        await self._screen.verbs.go_on(self._turn("", "assistant"))

    async def _branch(self, argument: str) -> None:
        if not argument:
            raise UsageError("/branch needs the number of a turn.", "Write /branch N.")
        await self._screen.verbs.branch(self._turn(argument))

    async def _tokens(self, argument: str) -> None:
        await self._screen.verbs.tokens(self._turn(argument, "assistant"))

    async def _title(self, argument: str) -> None:
        self._screen.bridge.conversation.retitle(argument)
        self._screen.tabs.refresh()
        self._screen.remark(f"This chat is called {self._screen.bridge.title!r} now.")

    async def _tree(self, argument: str) -> None:
        await self._screen.verbs.tree()

    async def _undo(self, argument: str) -> None:
        await self._screen.verbs.undo()

    async def _redo(self, argument: str) -> None:
        await self._screen.verbs.redo()

    async def _other(self, argument: str) -> None:
        side, _, number = argument.partition(" ")
        if side not in ("next", "prev"):
            raise UsageError(f"/other {argument} is unknown.", "Write /other next or /other prev.")
        turn = self._turn(number.strip(), "" if number else "assistant")
        await self._screen.verbs.step(turn, 1 if side == "next" else -1)

    def _turn(self, number: str, role: str = "") -> Turn:
        """Turn `number` of the chat, or without one the last of a role."""
        turns = self._screen.bridge.conversation.turns
        if not number:
            found = next((turn for turn in reversed(turns) if role in ("", turn.role)), None)
            if found is None:
                raise UsageError("Nothing was said yet.", "Write a message first.")
            return found
        digits = number.removeprefix("#")
        if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= len(turns)):
            there = f"Turns are 1 to {len(turns)}." if turns else "Write a message first."
            raise UsageError(f"There is no turn {number}.", there)
        return turns[int(digits) - 1]

    async def _sessions(self, argument: str) -> None:
        self._screen.action_sessions()

    async def _resume(self, argument: str) -> None:
        if argument:
            await self._screen.resume(argument)
        else:
            self._screen.action_sessions()

    async def _stats(self, argument: str) -> None:
        self._screen.action_density()

    async def _help(self, argument: str) -> None:
        self._screen.transcript.note(slash.help_text())

    async def _bye(self, argument: str) -> None:
        self._screen.app.exit()

    async def _restart(self, argument: str) -> None:
        bridge = self._screen.bridge
        if bridge.board.busy and bridge.state != "LOADING":
            raise UsageError("The model is answering.", "Press esc first, in every tab.")
        self._screen.show_beat(bridge.start())

    async def _copy(self, argument: str) -> None:
        if argument:
            self._screen.copy(self._turn(argument).text, f"turn {argument}")
            return
        turns = self._screen.bridge.conversation.turns
        answers = [turn.text for turn in turns if turn.role == "assistant" and turn.text]
        if not answers:
            raise UsageError("There is no answer to copy.", "Send a message first.")
        self._screen.copy(answers[-1], "the last answer")

    async def _set(self, argument: str) -> None:
        kind, _, rest = argument.partition(" ")
        settings = self._screen.bridge.settings
        if kind == "system":
            self.adopt(choices.changed(settings, "system", rest.strip().strip('"')))
            return
        name, _, value = (rest if kind == "parameter" else argument).strip().partition(" ")
        if not name:
            raise UsageError(
                f"/set {argument} is incomplete.", "Write /set NAME VALUE or /set system TEXT."
            )
        self.adopt(choices.changed(settings, name, value.strip()))

    async def _spec(self, argument: str) -> None:
        settings = choices.with_spec(self._screen.bridge.settings, argument.lower())
        self.adopt(settings)
        self._screen.transcript.note(choices.spec_text(settings, self._screen.bridge.mtp_off))

    async def _show(self, argument: str) -> None:
        bridge = self._screen.bridge
        settings, model = bridge.settings, bridge.model
        if argument == "info":
            text = info_text(self._screen)
        elif argument == "parameters":
            text = choices.parameters_text(settings, model.recommended if model else None)
        elif argument == "system":
            text = bridge.conversation.system or "No system prompt is set."
        elif argument == "spec":
            text, last = choices.spec_text(settings, bridge.mtp_off), bridge.view().reason
            text += f"\nlast round: {last}" if last else ""
        else:
            raise UsageError(
                f"/show {argument} is unknown.", "Give info, parameters, system or spec."
            )
        self._screen.transcript.note(text)


def info_text(screen: ChatScreen) -> str:
    """The model and the conversation, a line each."""
    bridge = screen.bridge
    model, name = bridge.model, bridge.conversation.name or "not saved yet"
    if model is None:
        return f"model    {bridge.settings.model} (not loaded)\nsession  {name}"
    return "\n".join(
        [
            f"model    {model.name} ({model.recipe}, {model.parameters / 1e6:,.1f} M parameters)",
            f"runs     {model.dtype} on {model.device}, context {model.context}, "
            f"{bridge.board.lanes} at once (--concurrency)",
            f"rounds   {model.rounds}",
            *([f"memory   {model.memory}"] if model.memory else []),
            f"digest   {model.fingerprint[:16]}, template {model.template_digest}",
            f"held to  {bridge.held or 'nothing'}",
            *(f"mtp      {line}" for line in _mtp_lines(model, bridge.mtp_off, bridge.notices)),
            f"session  {name}",
        ]
    )


def _mtp_lines(model: ModelInfo, off: str, notices: Sequence[str]) -> list[str]:
    """The loaded draft head, or why there is none, and what was said of others."""
    head, refusals = model.mtp, list(filter(is_refusal, notices))
    if head is None:
        return refusals or [off]
    facts = f"{head.parameters / 1e6:.1f} M parameters, {head.draft_vocabulary} draft tokens"
    return [f"{head.file} ({facts}){', ' if off else ''}{off}", *refusals]
