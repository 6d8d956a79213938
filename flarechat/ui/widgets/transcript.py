"""The scrolling transcript: turns, the live tail, queued messages, and the selected turn.

Owns scrolling, following and turn mode. Reads turns; never sends, stops or saves anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from flarechat.chat import Turn
from flarechat.textsafe import strip_controls
from flarechat.ui import messages
from flarechat.ui.format import Glyphs
from flarechat.ui.markdown import code_blocks
from flarechat.ui.widgets.turn import NoteView, Place, TailView, TurnView, draw

MOUNTED_AT_ONCE = 60
WELCOME = "Type a message and press enter. f1 shows every key, / starts a command."


class Transcript(VerticalScroll, can_focus=True):
    """The conversation on screen. Clicks select text; keys enter turn mode."""

    FOCUS_ON_CLICK: ClassVar[bool] = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "select(1)", "Next turn", id="turn.next", show=False),
        Binding("k,up", "select(-1)", "Previous turn", id="turn.previous", show=False),
        Binding("g,home", "select_end(-1)", "First turn", id="turn.first", show=False),
        Binding("G,end", "select_end(1)", "Last turn", id="turn.last", show=False),
        Binding("y", "copy_message", "Copy message", id="turn.copy", show=False),
        Binding("Y", "copy_code", "Copy next code block", id="turn.copy_code", show=False),
        Binding("e", "verb('edit')", "Edit the message", id="turn.edit", show=False),
        Binding("r", "verb('regenerate')", "Answer again", id="turn.regenerate", show=False),
        Binding("c", "verb('go_on')", "Continue the answer", id="turn.continue", show=False),
        Binding("b", "verb('branch')", "Go on from here", id="turn.branch", show=False),
        Binding("T", "verb('tree')", "Every branch", id="turn.tree", show=False),
        Binding("i", "verb('tokens')", "Its tokens", id="turn.tokens", show=False),
        Binding("u,ctrl+z", "verb('undo')", "Take back", id="turn.undo", show=False),
        Binding("U,ctrl+y", "verb('redo')", "Bring back", id="turn.redo", show=False),
        Binding("t", "fold", "Show or hide what is folded", id="turn.thinking", show=False),
        Binding("left_square_bracket", "sibling(-1)", "Previous of its place",
                id="turn.before", show=False),
        Binding("right_square_bracket", "sibling(1)", "Next of its place", id="turn.after",
                show=False),
        Binding("enter,tab", "leave", "Back to the prompt", id="turn.leave", show=False),
    ]  # fmt: skip

    def __init__(self, marks: Glyphs, place: Place = lambda turn: (1, 1)) -> None:
        super().__init__(id="transcript")
        self.marks, self._place = marks, place
        self._turns: list[Turn] = []
        self._views: dict[str, TurnView] = {}
        self._unmounted = 0
        self._selected: TurnView | None = None
        self._next_code = 0
        self._seen = 0

    def compose(self) -> ComposeResult:
        with Vertical(id="turns"):
            yield Static(WELCOME, id="welcome", markup=False)
            yield TailView(self.marks)
            yield Static("", id="queue", markup=False)

    def on_mount(self) -> None:
        self.border_title = "Chat"
        self.anchor()

    @property
    def _page(self) -> Vertical:
        return self.query_one("#turns", Vertical)

    async def show(self, turns: Sequence[Turn]) -> None:
        """Show these turns; those that stand already stay as they are, and of many the older are
        mounted when scrolled to.
        """
        kept = self._shared(turns)
        stale = [view for view in self._views.values() if view.number > kept]
        self._views = {key: view for key, view in self._views.items() if view.number <= kept}
        if not self._views:
            kept, self._unmounted = 0, max(len(turns) - MOUNTED_AT_ONCE, 0)
        self._turns, self._selected = list(turns), None
        self.query_one(TailView).show([])
        await self.query(NoteView).remove()
        await self._page.remove_children(stale)
        views = self._new_views(max(kept, self._unmounted), len(self._turns))
        await self._page.mount_all(views, before="#tail")
        self.query_one("#welcome").display = not turns
        self.anchor()

    def _shared(self, turns: Sequence[Turn]) -> int:
        """How many of the turns that are shown begin these, ended."""
        pairs = enumerate(zip(self._turns, turns, strict=False))
        differ = (n for n, (old, new) in pairs if old is not new or new.status == "streaming")
        return next(differ, min(len(self._turns), len(turns)))

    def add(self, turn: Turn) -> None:
        """Show one more turn at the end."""
        self._turns.append(turn)
        number = len(self._turns)
        self.query_one("#welcome").display = False
        self._page.mount_all(self._new_views(number - 1, number), before="#tail")

    def catch_up(self, turns: Sequence[Turn]) -> None:
        """Show the turns that came behind those shown."""
        for turn in turns[len(self._turns) :]:
            self.add(turn)

    def touch(self, turn: Turn, *, waits: bool = False, status: str = "", call: str = "") -> None:
        """A turn grew, ended, or waits for a lane of the engine; `status` stands for its text
        while there is none, and `call` is a call that is being written behind it.
        """
        if view := self._views.get(turn.id):
            draw(view, self.query_one(TailView), waits=waits, status=status, call=call)

    def note(self, text: str, *, warning: bool = False) -> None:
        """Show a local remark at the end, above an answer that is still being written."""
        self.query_one("#welcome").display = False
        last = self._turns[-1] if self._turns else None
        live = self._views.get(last.id) if last and last.status == "streaming" else None
        self._page.mount(NoteView(text, warning), before=live or "#tail")
        self.anchor()

    def show_queue(self, texts: Sequence[str]) -> None:
        """Show messages that wait for their turn."""
        queue = self.query_one("#queue", Static)
        lines = [f"You (queued)  {strip_controls(text)}" for text in texts]
        queue.update(Content("\n").join(lines))
        queue.display = bool(texts)

    def unseen_lines(self) -> int:
        """Lines that came below the screen since the user scrolled away; 0 while following."""
        if self.is_vertical_scroll_end:
            self._seen = self.virtual_size.height
        return self.virtual_size.height - self._seen

    @property
    def following(self) -> bool:
        return self.is_vertical_scroll_end

    def follow(self) -> None:
        """Go to the end and stay there."""
        self.anchor()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value <= 0 < old_value and self._unmounted:
            self.call_later(self._mount_older)

    async def _mount_older(self) -> None:
        first = max(self._unmounted - MOUNTED_AT_ONCE, 0)
        height = self.virtual_size.height
        await self._page.mount_all(self._new_views(first, self._unmounted), after="#welcome")
        self._unmounted = first
        self.call_after_refresh(
            lambda: self.scroll_to(y=self.virtual_size.height - height, animate=False)
        )

    def _new_views(self, start: int, stop: int) -> list[TurnView]:
        views = [
            TurnView(self._turns[n], n + 1, self.marks, self._place) for n in range(start, stop)
        ]
        self._views.update({view.turn.id: view for view in views})
        return views

    # Turn mode

    @property
    def selected(self) -> Turn | None:
        """The turn that turn mode is at."""
        return self._selected.turn if self._selected else None

    def select_sibling(self, turn: Turn) -> None:
        """Select the answer that stands where another one to the same message stood."""
        for view in self._views.values():
            if view.turn.parent == turn.parent and view.turn.role == turn.role:
                self._pick(view)

    async def reveal(self, turn: str) -> bool:
        """Enter turn mode at the turn with this id; whether it is one of those shown."""
        if not any(shown.id == turn for shown in self._turns):
            return False
        while turn not in self._views:
            await self._mount_older()
        view = self._views[turn]
        self._pick(view)
        self.focus(scroll_visible=False)
        self.call_after_refresh(self._bring, view)
        return True

    def _bring(self, view: TurnView) -> None:
        """Scroll to a turn once it has its place."""
        if view.region.height:
            self.scroll_to(y=view.virtual_region.y, animate=False)
        elif view.is_attached:
            self.call_after_refresh(self._bring, view)

    def on_focus(self) -> None:
        self.post_message(messages.TurnModeChanged(True))
        if self._selected is None and self._views:
            self._pick(self._mounted()[-1])

    def on_blur(self) -> None:
        self.post_message(messages.TurnModeChanged(False))
        self._pick(None)

    def action_select(self, step: int) -> None:
        views = self._mounted()
        if not views:
            return
        at = views.index(self._selected) if self._selected in views else len(views)
        self._pick(views[min(max(at + step, 0), len(views) - 1)])

    def action_select_end(self, side: int) -> None:
        views = self._mounted()
        if views:
            self._pick(views[-1 if side > 0 else 0])

    def action_copy_message(self) -> None:
        if self._selected:
            self.post_message(messages.CopyAsked(self._selected.turn.text, "message"))

    def action_copy_code(self) -> None:
        codes = code_blocks(self._selected.turn.text) if self._selected else []
        if not codes:
            self.post_message(messages.Remarked("This turn has no code block."))
            return
        at = self._next_code % len(codes)
        self._next_code = at + 1
        self.post_message(messages.CopyAsked(codes[at], f"code block {at + 1} of {len(codes)}"))

    def action_fold(self) -> None:
        if not (self._selected and self._selected.fold()):
            self.post_message(messages.Remarked("This turn has nothing folded."))

    def action_sibling(self, step: int) -> None:
        if self._selected:
            self.post_message(messages.BranchAsked(self._selected.turn, step))

    def action_verb(self, verb: str) -> None:
        if self._selected:
            self.post_message(messages.VerbAsked(verb, self._selected.turn))

    def action_leave(self) -> None:
        self.post_message(messages.PromptWanted())

    def _mounted(self) -> list[TurnView]:
        return list(self.query(TurnView))

    def _pick(self, view: TurnView | None) -> None:
        if self._selected is not None:
            self._selected.remove_class("-selected")
        if view is not self._selected:
            self._next_code = 0
        self._selected = view
        if view is not None:
            view.add_class("-selected")
            self.release_anchor()
            self.scroll_to_widget(view, animate=False)
