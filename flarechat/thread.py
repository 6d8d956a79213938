"""What was said in one conversation: its turns, their branches and its session file.

Owns which turns are the conversation now, the answers that wait to be picked from, and that all of
it is written down. Asks no engine: chat does, and says here what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flarechat.asking import Asked
from flarechat.config import Settings
from flarechat.errors import UsageError
from flarechat.protocol import MemoryInfo, ModelInfo, Sampling
from flarechat.sessions import names, store
from flarechat.sessions.keeper import Keeper
from flarechat.sessions.records import model_fields
from flarechat.sessions.session import Session, new_header
from flarechat.sessions.turns import Turn, TurnTree
from flarechat.textsafe import strip_controls, well_formed


class Thread:
    """The turns of one conversation and the file they are kept in.

    While `fan` holds answers to choose from, `turns` ends at the message they answer; `marked` is
    the one of them that is looked at, from 0.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.turns: list[Turn] = []
        self.fan: list[Turn] = []
        self.marked = 0
        self.notices: list[str] = []
        self._keeper: Keeper | None = None
        self._tree = TurnTree()
        self._model: ModelInfo | None = None
        self._live: dict[str, Asked] = {}

    @classmethod
    def saved(cls, settings: Settings, name: str) -> Thread:
        """The session of exactly this name, or an empty one, to look at: nothing is written."""
        thread = Thread(settings)
        if store.exists(name):
            thread._tree = Session(store.find(name)).tree
            thread._take_turns()
        return thread

    @property
    def name(self) -> str:
        """The session's name; empty until it has one."""
        return self._keeper.name if self._keeper else ""

    @property
    def system(self) -> str | None:
        """The system prompt: the one set now ("" sets none), else the one saved last."""
        now = self.settings.system
        return self._tree.system if now is None else now

    @property
    def tree(self) -> TurnTree:
        """All turns of all branches; to be read only."""
        return self._tree

    @property
    def memory(self) -> MemoryInfo | None:
        """The loaded model's memory, priced and allocated."""
        return self._model.memory if self._model else None

    @property
    def rounds(self) -> str:
        """How the loaded model's rounds are run, in words."""
        return self._model.rounds if self._model else ""

    @property
    def bound(self) -> bool:
        """Whether the model that answers is known."""
        return self._model is not None

    @property
    def unsaved(self) -> bool:
        """Whether the disk refused something that has not been written since."""
        return self._keeper is not None and self._keeper.unsaved

    @property
    def live(self) -> Turn | None:
        """The answer under way; of several the first."""
        return next((asked.turn for asked in self._live.values()), None)

    @property
    def lives(self) -> list[Turn]:
        """All answers under way."""
        return [asked.turn for asked in self._live.values()]

    @property
    def shown(self) -> Turn | None:
        """The answer whose figures count: of a fan the marked one, else the last."""
        if self.fan:
            return self.fan[self.marked]
        return next((turn for turn in reversed(self.turns) if turn.role != "tool"), None)

    @property
    def unanswered(self) -> bool:
        """Whether the last turn is a tool's result, behind which the model has said nothing."""
        return bool(self.turns) and self.turns[-1].role == "tool"

    def pick(self, number: int) -> Turn:
        """Go on with this answer of the fan, from 0; the others stay as branches."""
        if not 0 <= number < len(self.fan):
            raise UsageError(
                f"There is no answer {number + 1} to pick.",
                f"Pick 1 to {len(self.fan)}." if self.fan else "/fan N asks for several answers.",
            )
        picked, self.fan = self.fan[number], []
        self._tree.pick(picked)
        self.turns.append(picked)
        if self._keeper:
            self._keeper.head(picked)
        return picked

    def place(self, turn: Turn) -> tuple[int, int]:
        """Which of how many answers to the same message, or messages in the same place, a turn is,
        from 1.
        """
        siblings = self._tree.siblings(turn)
        return (siblings.index(turn) + 1 if turn in siblings else 1), max(len(siblings), 1)

    def branch(self, turn: Turn, step: int) -> bool:
        """Go over to another answer to the same message, or another message in the same place, and
        to what followed it; whether there is one in that direction.
        """
        self._require_rest()
        siblings = self._tree.siblings(turn)
        at = siblings.index(turn) + step
        if not 0 <= at < len(siblings):
            return False
        self._go_to(self._tree.end_of(siblings[at]))
        return True

    def branch_at(self, turn: Turn) -> None:
        """Go back, or over, to any turn: the next message goes behind it. What follows it now stays
        as a branch.
        """
        self._require_rest()
        self._go_to(self._known(turn))

    def retitle(self, title: str) -> None:
        """Call the conversation so from here on; "" for its first words."""
        if not (self._keeper and self._keeper.begun):
            raise UsageError("This chat has no file to keep a title in.", "Write a message first.")
        self._tree.title = names.title(strip_controls(title))
        self._keeper.title(self._tree.title, self.turns[-1].id if self.turns else None)

    def undo(self) -> Turn:
        """Go back to before the last message; it and what answers it stay as a branch. Returns the
        message.
        """
        self._require_rest()
        asked = next((turn for turn in reversed(self.turns) if turn.role == "user"), None)
        if asked is None:
            raise UsageError("There is nothing to undo.", "Write a message first.")
        self._go_to(self._tree.turns.get(asked.parent or ""))
        return asked

    def _known(self, turn: Turn) -> Turn:
        known = self._tree.turns.get(turn.id)
        if known is None:
            raise UsageError("That turn is of another conversation.", "Choose one that is shown.")
        return known

    def _go_to(self, turn: Turn | None) -> None:
        """Go on from this turn, None for the beginning, and write that down."""
        self._tree.pick(turn)
        self.turns = self._tree.path()
        if self._keeper:
            self._keeper.head(turn)

    def _require_rest(self) -> None:
        if self._live:
            raise UsageError("An answer is still under way.", "Stop it first.")
        if self.fan:
            raise UsageError(
                f"There are {len(self.fan)} answers to choose from.",
                f"Pick one first: /pick 1 to /pick {len(self.fan)}.",
            )

    def _say(self, text: str) -> None:
        """Save the user's turn, behind the turns there are."""
        self._require_rest()
        parent = self.turns[-1].id if self.turns else None
        user = Turn(id=names.new_id(), parent=parent, role="user", text=well_formed(text))
        if self._keeper:
            if not self._keeper.begun:
                self._keeper.begin(self._header(), user.text)
                self._tree.system = self.system
            self._note_system(parent)
            self._keeper.user(user)
        self._tree.add(user)
        self.turns.append(user)

    def _step_back(self, remedy: str, turn: Turn | None = None) -> None:
        """Take the last message, of those up to `turn`, as the one to answer; its answer so far
        becomes a branch.
        """
        self._require_rest()
        turns = self._tree.path_to(self._known(turn)) if turn else self.turns
        self.turns = self._tree.path_to(last_message(turns, "answer again", remedy))
        self._note_system(self.turns[-1].id)

    def _step_before(self, turn: Turn) -> None:
        """Take away one of the user's turns and all behind it: the next takes its place."""
        self._require_rest()
        if self._known(turn).role != "user":
            raise UsageError("Only a message can be edited.", "Choose one of your own.")
        self.turns = self._tree.path_to(self._tree.turns.get(turn.parent or ""))

    def cut_off(self) -> Turn:
        """The last answer, which can be gone on with."""
        self._require_rest()
        turn = self.turns[-1] if self.turns else None
        if turn is None or turn.role != "assistant":
            raise UsageError("There is no answer to continue.", "Write a message first.")
        if turn.status == "complete" and turn.reason not in ("length", "context"):
            raise UsageError(
                "The last answer ended by itself; there is nothing to continue.",
                "Write a message, or have it answered again.",
            )
        return turn

    def _reopen(self) -> Turn:
        """Take up the last answer, which was cut off, and write that down."""
        turn = self.cut_off()
        self._note_system(turn.id)
        if self._keeper:
            self._keeper.go_on(turn)
        return self.turns.pop()

    def _note_system(self, head: str | None) -> None:
        """Write down which system prompt holds from here on, where the file says another."""
        if self._keeper and (self.system or "") != (self._tree.system or ""):
            self._keeper.system(self.system or "", head)
        self._tree.system = self.system

    def _take_turns(self) -> None:
        """Take the turns from the tree, and apart from them those that wait to be picked from."""
        self.turns, self.fan = self._tree.path(), self._tree.open_fan()
        self.marked = 0
        if self.fan:
            self.turns.pop()

    def _note_model(self, model: ModelInfo, head: str | None) -> None:
        """Write down which model answers from here on, where the file does not say so yet."""
        known = (self._tree.model.get("fingerprint"), self._tree.template_digest)
        if self._keeper and known != (model.fingerprint, model.template_digest):
            self._keeper.model(model, head)
            self._tree.model = model_fields(model)
            self._tree.template_digest = model.template_digest

    def _header(self) -> dict[str, Any]:
        """The first line of a new session, from what is known by now."""
        model = self._model
        if model:
            self._tree.model = model_fields(model)
            self._tree.template_digest = model.template_digest
        return new_header(
            model=model,
            model_name=self.settings.model,
            sampling=self.settings.sampling(model.recommended if model else Sampling()),
            speculation=self.settings.speculation(),
            system=self.system,
        )


def last_message(turns: Sequence[Turn], to: str, remedy: str = "Write a message first.") -> Turn:
    """The last of the user's turns, which is wanted `to` do something with."""
    for turn in reversed(turns):
        if turn.role == "user":
            return turn
    raise UsageError(f"There is no message to {to}.", remedy)
