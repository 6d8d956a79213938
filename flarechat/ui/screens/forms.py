"""Small forms over a saved chat: another name and title, a file to write, a file to read.

Owns the fields and how a form waits for what it does, in a thread; what is legal is decided by
flarechat.sessions.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Select, Static

from flarechat import paths
from flarechat.errors import FlarechatError, SessionError, StorageError, reason_of
from flarechat.sessions import bundle, store
from flarechat.sessions.export import FORMATS, exported, new_file
from flarechat.sessions.importing import import_file
from flarechat.sessions.session import Session
from flarechat.sessions.state import write_bundle
from flarechat.textsafe import strip_controls
from flarechat.vault.folder import VaultFolder

KINDS = {
    "markdown": ".md", "html": ".html", "openai": ".json", "sharegpt": ".sharegpt.json",
    "jsonl": ".jsonl", "bundle": bundle.SUFFIX,
}  # fmt: skip
# Of a bundle, what the model computed for the chat.
_STATE_OUT = [("left out", "without"), ("in a bundle", "with")]
_STATE_IN = [("left out", "without"), ("taken, from somebody I trust", "with")]
assert set(KINDS) == {*FORMATS, "bundle"}, "every format has the ending of its file"


class Form(ModalScreen[str | None]):
    """Fields and a line for what is wrong. Returns what was done, in a sentence, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Cancel", id="form.cancel", show=False),
        Binding("ctrl+s", "apply", "Apply", id="form.apply", show=False),
    ]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = strip_controls(title)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box -small") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "tab next  enter apply  esc cancel"
            for label, field in self.fields():
                with Horizontal(classes="field"):
                    yield Label(label)
                    yield field
            yield Static("", id="problem", markup=False)

    def fields(self) -> list[tuple[str, Input | Select[str]]]:
        """The labels and fields, from the top."""
        raise NotImplementedError

    def work(self, values: dict[str, str]) -> str:
        """Do it; what was done in a sentence. Runs in a thread of its own."""
        raise NotImplementedError

    def value(self, name: str) -> str:
        """What a field says."""
        field = self.query_one(f"#{name}")
        assert isinstance(field, Input | Select)
        return str(field.value).strip()

    def on_input_submitted(self) -> None:
        self.action_apply()

    def action_apply(self) -> None:
        values = {str(field.id): self.value(str(field.id)) for _, field in self._shown()}
        self.run_worker(self._apply(values), group="apply", exclusive=True)

    def _shown(self) -> list[tuple[str, Input | Select[str]]]:
        found = self.query(".field > Input, .field > Select")
        return [("", field) for field in found if isinstance(field, Input | Select)]

    async def _apply(self, values: dict[str, str]) -> None:
        try:
            said = await asyncio.to_thread(self.work, values)
        except FlarechatError as error:
            self._refuse(str(error))
        except Exception as error:
            self._refuse(f"That failed: {type(error).__name__}: {error}.")
        else:
            self.dismiss(said)

    def _refuse(self, why: str) -> None:
        self.query_one("#problem", Static).update(strip_controls(why))

    def action_close(self) -> None:
        self.dismiss(None)


class RenameScreen(Form):
    """Another name or title for a chat that is not open."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(f"Rename {name}")
        self._chat, self._path = name, path

    def fields(self) -> list[tuple[str, Input | Select[str]]]:
        return [
            ("Name", Input(self._chat, compact=True, id="name")),
            ("Title", Input(placeholder="as it is", compact=True, id="title")),
        ]

    def work(self, values: dict[str, str]) -> str:
        path, name = self._path, values["name"]
        if name != self._chat:
            path = store.rename(path, name)
        if values["title"]:
            store.retitle(path, values["title"])
        return f"This chat is now {name}."


class ExportScreen(Form):
    """A chat as a file in a format of others."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(f"Export {name}")
        self._chat, self._path = name, path

    def fields(self) -> list[tuple[str, Input | Select[str]]]:
        branches = [("the one that goes on", "head"), ("all", "all")]
        return [
            ("Format", _select([(kind, kind) for kind in KINDS], "kind")),
            ("Branches", _select(branches, "branches")),
            ("State", _select(_STATE_OUT, "state")),
            ("File", Input(self._file("markdown"), compact=True, id="file")),
        ]

    def _file(self, kind: str) -> str:
        return self._chat + KINDS[kind]

    def on_select_changed(self, event: Select.Changed) -> None:
        """The file follows the format until another was written."""
        file = self.query_one("#file", Input)
        if event.select.id == "kind" and file.value in map(self._file, KINDS):
            file.value = self._file(str(event.value))

    def work(self, values: dict[str, str]) -> str:
        session, kind, said = Session(self._path), values["kind"], list[str]()
        path = _path(values["file"])
        every = values["branches"] == "all"
        data = None if kind == "bundle" else exported(session, kind, all_branches=every)
        try:
            with new_file(path) as out:
                if data is not None:
                    out.write(data)
                elif values["state"] == "with":
                    said = write_bundle(session, out, VaultFolder(paths.snapshots_dir()))
                else:
                    bundle.write(session, out)
        except FileExistsError:
            raise SessionError(f"{path} is there already.", "Give another file.") from None
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {reason_of(error)}.", "Give another file."
            ) from error
        return " ".join([f"Wrote {path}.", *said])


class ImportScreen(Form):
    """Chats of a file: OpenAI messages, ShareGPT, ChatGPT's, logs and bundles. The state of a
    bundle may make the vault `vault_bytes` large."""

    def __init__(self, vault_bytes: int) -> None:
        super().__init__("Take chats from a file")
        self._vault_bytes = vault_bytes

    def fields(self) -> list[tuple[str, Input | Select[str]]]:
        return [
            ("File", Input(placeholder="conversations.json", compact=True, id="file")),
            ("State", _select(_STATE_IN, "state")),
        ]

    def work(self, values: dict[str, str]) -> str:
        budget = self._vault_bytes if values.get("state") == "with" else None
        taken, notices = import_file(_path(values["file"]), state_budget=budget)
        names = ", ".join(one.name for one in taken[:3]) + (", …" if len(taken) > 3 else "")
        said = [*notices, *(notice for one in taken for notice in one.notices)]
        return " ".join([f"Took {len(taken)}: {names}.", *said])


def _select(choices: list[tuple[str, str]], name: str) -> Select[str]:
    return Select(choices, value=choices[0][1], allow_blank=False, compact=True, id=name)


def _path(text: str) -> Path:
    if not text:
        raise SessionError("No file was named.", "Give the path of a file.")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise SessionError(
            f"{text} begins with the home folder of nobody who is known.",
            "Give the path without ~.",
        ) from None
