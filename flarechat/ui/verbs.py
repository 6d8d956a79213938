"""Carries out what is to be done with a turn: edit, answer again, continue, branch, take back.

Knows how each changes the screen; what it does to the conversation is the bridge's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flarechat.chat import Turn
from flarechat.errors import FlarechatError, UsageError
from flarechat.ui.beat import Beat

if TYPE_CHECKING:
    from flarechat.ui.screens.chat import ChatScreen


class Verbs:
    """One method a verb of `run`; each raises what was refused."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    async def run(self, verb: str, turn: Turn) -> None:
        """Do something with a turn; a failure is told, not raised."""
        try:
            await getattr(self, verb)(turn)
        except FlarechatError as error:
            self._screen.tell(error)

    async def edit(self, turn: Turn) -> None:
        """Put a message into the prompt; what is sent then takes its place."""
        if turn.role != "user":
            raise UsageError("Only a message can be edited.", "Choose one of your own.")
        self._screen.tabs.current.edit(turn)

    async def say_instead(self, text: str) -> None:
        """Send what was made of the message that is edited."""
        pane = self._screen.tabs.current
        assert pane.editing, "no message is edited"
        try:
            pane.bridge.edit(pane.editing, text)
        except FlarechatError as error:
            pane.prompt.put_back(text)
            self._screen.tell(error)
            return
        pane.leave_edit()
        await self._asked()

    async def regenerate(self, turn: Turn) -> None:
        """Ask for another answer to the message that a turn answers, or is."""
        self._screen.bridge.regenerate(turn)
        await self._asked()

    async def go_on(self, turn: Turn) -> None:
        """Let the model go on with its last answer."""
        self._screen.bridge.go_on(turn)
        await self._asked()

    async def branch(self, turn: Turn) -> None:
        """Go back to a turn; the next message goes behind it."""
        self._screen.bridge.branch_at(turn)
        number = self._number(turn)
        await self._moved(f"The next message goes behind #{number}; what followed stays a branch.")

    async def undo(self, turn: Turn | None = None) -> None:
        """Take back the last message and its answer."""
        number = self._number(self._screen.bridge.undo(), more=1)
        await self._moved(f"Took back #{number} and its answer; U or /redo brings them back.")

    async def redo(self, turn: Turn | None = None) -> None:
        """Bring back what was taken back last."""
        self._screen.bridge.redo()
        await self._moved("Brought back.")

    async def tokens(self, turn: Turn) -> None:
        """Show where the tokens of an answer came from."""
        if turn.role != "assistant":
            raise UsageError("Only answers have tokens to look at.", "Choose one of the model's.")
        if not turn.tokens and turn.status != "streaming":
            raise UsageError(
                "This answer was saved without its tokens.", "Only newer answers have them."
            )
        from flarechat.ui.screens.tokens import TokensScreen

        screen = self._screen
        number, origin = self._number(turn), screen.tabs.name_origin
        screen.app.push_screen(TokensScreen(screen.bridge, turn, number, screen.marks, origin))

    async def tree(self, turn: Turn | None = None) -> None:
        """Show every branch, and go to the one that is chosen."""
        from flarechat.ui.screens.tree import TreeScreen

        screen, tree = self._screen, self._screen.bridge.conversation.tree
        if not tree.turns:
            raise UsageError("Nothing was said yet.", "Write a message first.")

        async def chosen(turn: str | None) -> None:
            if turn is not None:
                await self.run("visit", tree.turns[turn])

        screen.app.push_screen(TreeScreen(tree, screen.marks), chosen)

    async def visit(self, turn: Turn) -> None:
        """Go to a turn of any branch, and to what followed it last."""
        screen = self._screen
        if not await screen.transcript.reveal(turn.id):
            screen.bridge.branch_at(screen.bridge.conversation.tree.end_of(turn))
            await screen.show_conversation()
            await screen.transcript.reveal(turn.id)

    async def step(self, turn: Turn, step: int) -> None:
        """Go over to another turn in the place of this one, and stay in turn mode if it is on."""
        screen = self._screen
        if not screen.bridge.branch(turn, step):
            screen.remark("There is no other on that side.")
            return
        await screen.show_conversation()
        if screen.transcript.has_focus:
            screen.transcript.select_sibling(turn)

    def _number(self, turn: Turn, more: int = 0) -> int:
        """Where a turn stands in the chat, from 1; `more` stand behind the end."""
        turns = self._screen.bridge.conversation.turns
        return next((n for n, t in enumerate(turns, 1) if t is turn), len(turns) + more)

    async def _asked(self) -> None:
        """An answer was asked for: show it and follow it."""
        screen = self._screen
        await screen.show_conversation()
        screen.transcript.follow()
        screen.show_beat(Beat())
        screen.prompt.focus()

    async def _moved(self, said: str) -> None:
        """The conversation ends elsewhere: show its end and go on in the prompt."""
        screen = self._screen
        await screen.show_conversation()
        screen.transcript.follow()
        screen.prompt.focus()
        screen.remark(said)
