"""The windows that open above the chat: sessions, history, keys, settings, the editor.

Owns what is handed to each and what becomes of its answer. The chat screen is built on it.
"""

from __future__ import annotations

from textual.screen import Screen

from flarechat.errors import FlarechatError
from flarechat.ui import editor, slash
from flarechat.ui.dashboard import Dashboard
from flarechat.ui.desk import Desk
from flarechat.ui.tabs import Tabs
from flarechat.ui.widgets.prompt import Prompt


class Windows(Screen[None]):
    """What a chat screen can open above itself."""

    tabs: Tabs
    desk: Desk
    dashboard: Dashboard

    @property
    def prompt(self) -> Prompt:
        """Where the user writes, in the chat shown."""
        return self.tabs.current.prompt

    def tell(self, error: FlarechatError) -> None:
        """Say what went wrong, where it stays readable."""
        self.tabs.current.transcript.note(f"Error: {error}", warning=True)

    async def resume(self, name: str) -> bool:
        """Open a saved conversation, or go to its tab; when that fails, say why and go on."""
        try:
            await self.tabs.resume(name)
        except FlarechatError as error:
            self.tell(error)
            return False
        return True

    async def reveal(self, turn: str) -> None:
        """Show the turn in which something was found; from there, keys go on in turn mode."""
        if not await self.tabs.current.transcript.reveal(turn):
            self.notify("The words are in another branch of this chat.", markup=False)

    def action_sessions(self) -> None:
        from flarechat.ui.screens.sessions import SessionsScreen

        names = [pane.bridge.conversation.name for pane in self.tabs.panes]
        screen = SessionsScreen(names, self.tabs.current.bridge.settings.vault_bytes)

        async def opened(name: str | None) -> None:
            if name and await self.resume(name) and screen.found_turn:
                await self.reveal(screen.found_turn)

        self.app.push_screen(screen, opened)

    async def action_tree(self) -> None:
        await self.desk.run(slash.Invocation("tree"))

    def action_editor(self) -> None:
        try:
            text = editor.edit(self.app, self.prompt.whole)
        except FlarechatError as error:
            self.tell(error)
            return
        self.prompt.put(text)

    def action_history(self) -> None:
        from flarechat.ui.screens.history import HistoryScreen

        prompt = self.prompt

        def chosen(text: str | None) -> None:
            if text is not None:
                prompt.put(text)

        self.app.push_screen(HistoryScreen(prompt.past), chosen)

    def action_keys(self) -> None:
        from flarechat.ui.screens.keys import KeysScreen

        self.app.push_screen(KeysScreen())

    def action_constraint(self) -> None:
        from flarechat.ui.screens.constraint import ConstraintScreen

        bridge = self.tabs.current.bridge
        screen = ConstraintScreen(bridge.constraint, bridge.recent, bridge.settings)

        async def chosen(said: str | None) -> None:
            if said is not None:
                self.desk.hold_to(screen.constraint)
                self.desk.equip(screen.toolbox, screen.settings)

        self.app.push_screen(screen, chosen)

    def action_settings(self) -> None:
        from flarechat.ui.screens.settings import SettingsScreen

        bridge = self.tabs.current.bridge
        recommended = bridge.model.recommended if bridge.model else None
        settings = SettingsScreen(bridge.settings, recommended, bridge.board.lanes)
        self.app.push_screen(settings, self.desk.adopt)
