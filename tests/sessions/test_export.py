"""Export: what each format keeps, that nothing of a text is markup, and that it comes back."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat.errors import UsageError
from flarechat.sessions import bundle, store
from flarechat.sessions.export import FORMATS, exported
from flarechat.sessions.importing import import_file
from flarechat.sessions.session import Session
from tests.sessions.saving import append, saved

NASTY = "<script>alert(1)</script> & </div><img src=x onerror=y> \x1b[2J \x9b \ud800 # «»"


def branched() -> Session:
    """Two answers to the second message; the conversation goes on from the first of them."""
    path = saved("trip", "one", "two", "three", system="Be kind.")
    [*_, last] = Session(path).tree.turns
    append(path, ["left"], parent=last, thinking="hm")
    append(path, ["right"], parent=last)
    return Session(path)


def test_openai_has_the_head_or_every_branch() -> None:
    session = branched()

    head = json.loads(exported(session, "openai", all_branches=False))
    both = json.loads(exported(session, "openai", all_branches=True, thinking=True))

    beginning = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    right, left = ({"role": "assistant", "content": text} for text in ("right", "left"))
    assert {"messages": [*beginning, right]} == head
    assert [
        {"messages": [*beginning, right]},
        {"messages": [*beginning, left | {"reasoning_content": "hm"}]},
    ] == both
    assert b"reasoning" not in exported(session, "openai", all_branches=True)


def test_sharegpt_has_the_head_or_every_branch() -> None:
    session = branched()

    [head] = json.loads(exported(session, "sharegpt", all_branches=False))
    _, left = json.loads(exported(session, "sharegpt", all_branches=True, thinking=True))

    assert (session.id, ["system", "human", "gpt", "human", "gpt"]) == (
        head["id"],
        [said["from"] for said in head["conversations"]],
    )
    assert "<think>\nhm\n</think>\n\nleft" == left["conversations"][-1]["value"]


def test_markdown_tells_every_turn_once_and_keeps_thinking_apart() -> None:
    session = branched()

    told = exported(session, "markdown", all_branches=True).decode()

    assert told.startswith("# one\n\n## System\n\nBe kind.\n\n## You\n\none\n\n## Model\n\ntwo\n")
    assert told.endswith(
        "## Model\n\nright\n\n---\n\n*Branch 2 of 2, behind “three”*\n\n## Model\n\n"
        "<details><summary>Thinking</summary>\n\nhm\n\n</details>\n\nleft\n"
    )
    assert "left" not in exported(session, "markdown", all_branches=False).decode()


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_no_text_becomes_markup_in_a_page() -> None:
    path = saved("trip", NASTY, NASTY, NASTY, system=NASTY)
    append(path, [NASTY], thinking=NASTY)
    store.retitle(path, NASTY)
    page = Page()
    data = exported(Session(path), "html", all_branches=True)

    page.feed(data.decode())

    assert {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "article",
        "h2",
        "div",
        "details",
        "summary",
    } == set(page.tags)
    assert {"lang", "charset", "name", "content", "http-equiv", "class"} == page.attributes
    assert 8 == page.text.count("<script>alert(1)</script> & </div><img src=x onerror=y>")
    assert not set(b"\x1b\x7f") & set(data)
    assert b"prefers-color-scheme: dark" in data


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "jsonl"])
def test_an_export_is_safe_to_show_and_to_store(kind: str) -> None:
    path = saved(f"trip-{kind}", NASTY, NASTY)

    text = exported(Session(path), kind, all_branches=False).decode()

    assert not [character for character in text if ord(character) in (*range(9), 27, 0x9B)]


def test_a_log_is_exported_as_it_is_and_an_unknown_format_refused() -> None:
    path = saved("trip", "Hi")

    assert path.read_bytes() == exported(Session(path), "jsonl", all_branches=True)
    with pytest.raises(UsageError, match="There is no format 'pdf'"):
        exported(Session(path), "pdf", all_branches=True)


# A ShareGPT text that begins with these marks is read as thinking.
TEXT = st.text(min_size=1, max_size=30).filter(lambda text: not text.startswith("<think>"))
THOUGHT = st.text("ab c", max_size=5).map(str.strip)
PLACES = st.lists(st.tuples(st.integers(0, 5), TEXT, THOUGHT), min_size=1, max_size=6)


def tree(
    number: int, first: str, places: list[tuple[int, str, str]], system: str | None
) -> Session:
    """A session with a turn behind any of those before it, for every place."""
    path = saved(f"source-{number}", first, system=system)
    for place, text, thinking in places:
        turns = list(Session(path).tree.turns)
        append(path, [text], parent=turns[place % len(turns)], thinking=thinking)
    return Session(path)


def told(session: Session, *, thinking: bool) -> list[tuple[str, str, str]]:
    return [
        (turn.role, turn.text, turn.thinking if thinking else "") for turn in session.tree.path()
    ]


def shape(session: Session) -> object:
    """All turns with their places, and the head, whatever their ids."""
    ids = list(session.tree.turns)
    return (
        session.tree.head and ids.index(session.tree.head),
        session.system,
        [
            (turn.parent and ids.index(turn.parent), turn.role, turn.text, turn.thinking)
            for turn in session.tree.turns.values()
        ],
    )


@given(TEXT, PLACES, st.none() | TEXT, st.booleans())
@settings(max_examples=25, deadline=None)
def test_what_is_exported_is_imported_again(
    tmp_path_factory: pytest.TempPathFactory,
    first: str,
    places: list[tuple[int, str, str]],
    system: str | None,
    thinking: bool,
) -> None:
    folder = tmp_path_factory.mktemp("out")
    source = tree(len(store.listed()), first, places, system)
    for kind in ("openai", "sharegpt"):
        file = folder / f"{kind}.json"
        file.write_bytes(exported(source, kind, all_branches=False, thinking=thinking))
        [one], _ = import_file(file)
        copy = Session(store.find(one.name))
        assert (told(source, thinking=thinking), source.system) == (
            told(copy, thinking=True),
            copy.system,
        )
        file.write_bytes(exported(source, kind, all_branches=True))
        ends = len(json.loads(file.read_bytes()))
        assert ends == len(import_file(file)[0])
    for kind in ("jsonl", "bundle"):
        file = folder / f"again.{kind}"
        with file.open("wb") as out:
            if kind == "bundle":
                bundle.write(source, out)
            else:
                out.write(exported(source, kind, all_branches=True))
        [one], _ = import_file(file, f"{kind}-{source.name}")
        assert shape(source) == shape(Session(store.find(one.name)))
