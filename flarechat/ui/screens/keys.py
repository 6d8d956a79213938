"""Every key, every command and what each panel's words mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen

from flarechat.ui import slash
from flarechat.ui.markdown import Block, Prose
from flarechat.ui.widgets.page import Page

KEYS = (
    ("Writing", ""),
    ("enter", "send; while the model answers, queue"),
    ("ctrl+j, shift+enter", "new line"),
    ("up, down", "at the first or last line: earlier or later prompt"),
    ("ctrl+r", "search earlier prompts"),
    ("ctrl+g, f4", "write in $EDITOR"),
    ("tab", "complete a /command"),
    ("left, enter", "inside [paste ...]: show the pasted text"),
    ("Chatting", ""),
    ("esc", "stop the answer and keep what there is; close a window"),
    ("ctrl+c", "copy the selection; else stop; else clear; twice: quit"),
    ("pageup, pagedown", "scroll"),
    ("end, ctrl+end", "follow the answer"),
    ("ctrl+n", "new chat in a tab of its own"),
    ("ctrl+o", "sessions: type to search all that was said, enter opens; f2 renames"),
    ("in its list (tab)", "r renames, e exports, d deletes, n takes chats from a file"),
    ("ctrl+t", "telemetry: off, compact, full"),
    ("f1", "this help"),
    ("f2", "settings of the next turn"),
    ("f8", "what the next answers are held to, and the tools that may be called"),
    ("ctrl+p", "command palette"),
    ("ctrl+q, ctrl+d on empty", "quit; with several tabs ctrl+d closes the one shown"),
    ("Tabs (several chats at once)", ""),
    ("f7, ctrl+pageup", "tab before"),
    ("f9, ctrl+pagedown", "next tab"),
    ("ctrl+d on an empty prompt", "close the tab: its answer stops, the chat is saved"),
    ("--concurrency N", "answers at once: 1, 2 or 4 (3 counts as 4); each takes memory"),
    ("writing ~", "an answer is being written there"),
    ("waiting ..", "it waits for a free lane (--concurrency) or for the model"),
    ("new +", "an answer ended there that you have not looked at"),
    ("choose ?", "answers wait there to be picked from"),
    ("asks ?", "a call of a tool waits there for you"),
    ("error !", "the answer there failed"),
    ("Fan of answers (/fan 3 TEXT; shift+tab goes there)", ""),
    ("1 to 4, left, right, h, l", "mark an answer; in a narrow terminal, show it"),
    ("enter", "go on with the marked answer; nothing is sent before"),
    ("up, down, j, k, pageup, pagedown", "scroll the marked answer"),
    ("y", "copy it"),
    ("esc", "stop all of them"),
    ("tab, i, any other letter", "to the prompt, where such a letter begins a message"),
    ("A call of a tool (shift+tab goes there)", ""),
    ("y, enter", "yes, run it: the letter marks the answer, enter right behind it gives it"),
    ("a, enter", "yes, and every later call of this tool in this chat"),
    ("n, enter", "no; the model is told so"),
    ("esc", "stop the turn, and a tool that runs"),
    ("any other key, or too soon", "to the prompt; a message waits until the turn is over"),
    ("enter, enter in its field", "write the result of a tool that you answer for, and give it"),
    ("Turn mode (shift+tab, ctrl+up)", ""),
    ("j, k, g, G", "next, previous, first, last turn"),
    ("y", "copy the turn"),
    ("Y", "copy its next code block"),
    ("e", "edit the message: enter sends it in place of the old one, esc leaves it"),
    ("r", "answer again; the answers there are stay as branches"),
    ("c", "continue the last answer, if it was stopped or cut off"),
    ("[ ]", "another answer, or message, in the same place and what followed it"),
    ("b", "go on from this turn; what followed it stays as a branch"),
    ("T", "every branch; enter goes there"),
    ("u, ctrl+z", "take back the last message and its answer"),
    ("U, ctrl+y", "bring back what was taken back, or what followed before b"),
    ("t", "show or hide what the model thought, or all of a long result"),
    ("i", "its tokens, where each came from"),
    ("esc, enter, tab", "back to the prompt"),
    ("Tokens of an answer (i in turn mode)", ""),
    ("left, right, up, down, h, l, j, k", "move over the tokens; or click on one"),
    ("pageup, pagedown, space", "a page up or down"),
    ("g, G, home, end", "first, last token"),
    ("n, N", "next token of another source; back to where this one's began"),
    ("m MTP  h history  c context", "letters of drafts that were kept, by source"),
    ("- correction  + own", "the model's own token: after a refused draft, or behind the kept"),
    ("esc, i, q, enter", "back to the chat"),
)

TERMS = (
    ("round", "one pass of the model over the pending token and its drafts"),
    ("width", "rows of that pass: 1 + the drafts offered"),
    ("offered", "drafts put to the model"),
    ("accepted", "drafts it kept"),
    ("emitted", "tokens you got: emitted = accepted + rounds - clipped"),
    ("clipped", "tokens cut by an end of text or a limit inside a round"),
    ("MTP (row)", "drafts of the model's learned head; or why it has none"),
    ("history (row)", "drafts copied from what the model wrote before, in any chat"),
    ("context (row)", "drafts copied from this chat's own text"),
    ("model (row)", "the model's own tokens"),
    ("acc", "accepted / offered"),
    ("tok/round", "emitted / rounds, the model's own token included"),
    ("reach", "accepted at a depth / rounds that offered it"),
    ("cond", "the same, of rounds that kept every draft before it"),
    ("ms p50", "median time of a whole round of that width"),
    ("x est", "turn speed / measured speed at width 1; - until measured"),
    ("prompt 900 slot + 60 new", "tokens that were restored, and those that were computed"),
    ("slot, memory, disk", "where they stood: in use on the device, kept in memory, or on disk"),
    ("TTFT", "time to the first token"),
    ("hit", "rounds that offered tokens copied from what was written before"),
    ("last", "why the last round had its width, in the controller's words"),
    ("lanes", "answers played in one round, of this chat and of others"),
    ("forced", "tokens that were the only legal ones, offered as drafts"),
    ("removed", "drafts that were not offered, as the constraint does not allow them"),
    ("redrawn", "rounds whose last token was illegal and was drawn again from the legal ones"),
    ("ASKING, TOOL", "a call of a tool waits for you; a tool runs"),
    ("WAITING", "all lanes of the engine (--concurrency) are taken by other answers"),
    ("SPEC OFF", "drafting is off; the drafts panel says why"),
)

DRAFTING = (
    ("MTP", "a small learned head drafts in a chain from the model's own state"),
    ("copies", "text that stood before is drafted where it seems to come again"),
    ("--no-mtp", "start without a head; nothing of one is loaded"),
    ("--mtp-file PATH", "a head to try before the one that is found"),
    ("/set mtp on|off", "draft with the loaded head in the next turn, or leave it out"),
    ("--mtp-draft-tokens N", "most drafts a round; copies and head share them"),
    ("--no-history-drafts", "draft no copies"),
    ("/spec on", "a fixed number of drafts instead of the controller's choice"),
)


def help_blocks(column: int = 28) -> list[Block]:
    """The whole help: names in a column, meanings beside it."""
    commands = [(command.usage, command.help) for command in slash.COMMANDS]
    rows = [*KEYS, ("Panels", ""), *TERMS, ("Drafting", ""), *DRAFTING]
    rows += [("Commands", ""), *commands]
    blocks: list[Block] = []
    for name, meaning in rows:
        if not meaning:
            blocks.append(Prose(Content.styled(name, "bold underline")))
        elif len(name) < column:
            indent = " " * column
            blocks.append(Prose(Content(meaning), f"{name:{column}}", indent, False, "bold"))
        else:
            blocks.append(Prose(Content.styled(name, "bold"), gap=False))
            indent = " " * column
            blocks.append(Prose(Content(meaning), indent, indent, gap=False))
    return blocks


class KeysScreen(ModalScreen[None]):
    """The help; scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter", "close", "Close", id="keys.close", show=False),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Keys"
            box.border_subtitle = "up down scroll  esc close"
            with VerticalScroll() as page:
                page.can_focus = True
                help_page = Page()
                help_page.parts = help_blocks(28 if self.app.size.width >= 60 else 14)
                yield help_page

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_close(self) -> None:
        self.dismiss(None)
