"""Import: every format as documented, what cannot be taken is said, all of a file or nothing."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarechat import paths
from flarechat.errors import SessionError, StorageError
from flarechat.protocol import ToolCall
from flarechat.sessions import jsonvalues, store
from flarechat.sessions.importing import import_file
from flarechat.sessions.session import Session
from flarechat.sessions.turns import Turn
from tests.sessions.saving import saved

FOREIGN = Path(__file__).parent / "foreign"
Said = list[tuple[str, str, str]]


def said(turns: list[Turn]) -> Said:
    return [(turn.role, turn.text, turn.thinking) for turn in turns]


def taken(file: Path, name: str | None = None) -> list[Session]:
    sessions, _ = import_file(file, name)
    return [Session(store.find(one.name)) for one in sessions]


def written(folder: Path, value: Any, name: str = "chat.json") -> Path:
    file = folder / name
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return file


def test_openai_messages() -> None:
    [one], _ = import_file(FOREIGN / "openai.json")

    session = Session(store.find(one.name))
    assert "what-is-on-this-picture-image" == session.name
    assert "Answer briefly." == session.system
    assert [
        ("user", "What is on this picture?\n[image]", ""),
        ("assistant", "", ""),
        ("tool", "a cat", ""),
        ("assistant", "A cat.", "The tool says so."),
    ] == said(session.tree.path())
    _, asked, result, _ = session.tree.path()
    assert (ToolCall(id="call_1", name="look"),) == asked.calls
    assert ("call_1", "look", "done") == (result.call, result.name, result.reason)
    [notice] = one.notices
    assert notice.endswith("image ×1.")


def test_calls_in_every_spelling_are_taken_and_what_is_none_is_counted(tmp_path: Path) -> None:
    def chat(*messages: Any) -> tuple[list[tuple[str, Any]], str]:
        [one], _ = import_file(written(tmp_path, [{"role": "user", "content": "q"}, *messages]))
        turns = Session(store.find(one.name)).tree.path()[1:]
        made = [(t.role, t.text or [(c.name, c.arguments) for c in t.calls]) for t in turns]
        return made, " ".join(one.notices).rpartition(": ")[2]

    look = {"name": "look", "arguments": '{"at": "\\ud800"}'}
    asked = ("assistant", [("look", {"at": "?"})])
    assert ([asked, ("tool", "x")], "") == chat(
        {"role": "assistant", "content": None, "function_call": look},
        {"role": "function", "name": "look", "content": "x"},
    )
    assert ([asked, ("tool", "x")], "message of a tool ×2.") == chat(
        {"from": "function_call", "value": json.dumps(look)},
        {"from": "observation", "value": "x"},
        {"from": "observation", "value": "y"},
        {"role": "tool", "tool_call_id": "other", "content": "z"},
    )
    deep = '{"a":' * 200 + "1" + "}" * 200
    assert ([("assistant", "Hm.")], "call of a tool ×1.") == chat(
        {"role": "assistant", "content": "Hm.", "function_call": look | {"arguments": deep}}
    )
    assert ([("assistant", "Hm.")], "call of a tool ×5, message of a tool ×1.") == chat(
        {"role": "assistant", "content": "", "tool_calls": [3, {"function": {"name": ""}}]},
        {"role": "assistant", "content": "Hm.", "tool_calls": [{"function": look | {"name": 1}}]},
        {"role": "assistant", "tool_calls": {"function": look | {"arguments": "[1]"}}},
        {"from": "function_call", "value": "look!"},
        {"role": "tool", "tool_call_id": "c", "content": "z"},
    )


def test_openai_a_conversation_a_line() -> None:
    one, two = taken(FOREIGN / "openai.jsonl")

    assert [("user", "Größe?", ""), ("assistant", "Groß.", "")] == said(one.tree.path())
    assert ("größe", "hi", "Rhyme.") == (one.name, two.name, two.system)


def test_sharegpt() -> None:
    one, two = taken(FOREIGN / "sharegpt.json")

    assert [("user", "Who are you?", ""), ("assistant", "A model.", "")] == said(one.tree.path())
    assert "Be plain." == two.system
    assert [("4", "Easy."), ("Yes.", "")] == [(t.text, t.thinking) for t in two.tree.path()[1::2]]


def test_a_bare_list_of_messages_is_one_conversation(tmp_path: Path) -> None:
    openai = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    sharegpt = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]

    for chat in (openai, sharegpt):
        [session] = taken(written(tmp_path, chat))
        assert [("user", "a", ""), ("assistant", "b", "")] == said(session.tree.path())
    assert 2 == len(taken(written(tmp_path, f"{json.dumps(openai)}\n{json.dumps(sharegpt)}")))
    assert 2 == len(taken(written(tmp_path, [openai, sharegpt])))


def test_chatgpt_keeps_branches_titles_and_times_and_says_what_it_left_out() -> None:
    imported, notices = import_file(FOREIGN / "chatgpt.json")

    trips, sorting = (Session(store.find(one.name)) for one in imported)
    assert ("two-trips", "Two trips", "gpt-5") == (
        trips.name,
        trips.title,
        trips.header["model"]["name"],
    )
    assert 1700000000.25 == trips.header["created"]
    assert [
        ("user", "Plan a trip to Oslo.", ""),
        ("assistant", "Go in July.", ""),
        ("user", "[image]\nIs this Oslo?", ""),
        ("assistant", "Yes.", ""),
    ] == said(trips.tree.path())
    assert [
        ("user", "Plan a trip to Rome.", ""),
        ("assistant", "Let me look.\n\nGo in May.", "They want Rome."),
        ("user", "Plan a trip to Oslo.", ""),
        ("assistant", "Go in June.", ""),
    ] == said([t for t in trips.tree.turns.values() if t not in trips.tree.path()[1:]][:4])
    rome, oslo, *_ = (t for t in trips.tree.turns.values() if t.parent is None)
    assert (1700000001.5, 1700000100.0) == (rome.started_at, oslo.started_at)
    assert ["Go in June.", "Go in July."] == [
        turn.text for turn in trips.tree.siblings(trips.tree.path()[1])
    ]
    assert ["hidden message ×1, message of the tool web.run ×2, image ×1."] == [
        notice.partition(": ")[2] for notice in imported[0].notices
    ]
    assert "```python\nsorted([2, 1])\n```" == sorting.tree.path()[1].text
    assert [] == notices


def test_what_is_here_already_is_not_taken_twice(tmp_path: Path) -> None:
    import_file(FOREIGN / "chatgpt.json")
    store.remove(store.find("sorting"))

    imported, notices = import_file(FOREIGN / "chatgpt.json")

    assert ["sorting"] == [one.name for one in imported]
    assert [f"{FOREIGN}/chatgpt.json: left out 1 that are here already: two-trips."] == notices
    with pytest.raises(SessionError, match="is here already, as two-trips, sorting"):
        import_file(FOREIGN / "chatgpt.json")


def test_a_log_is_taken_byte_for_byte(tmp_path: Path) -> None:
    path = saved("trip", "Hi", "Hello")
    data = path.read_bytes() + b'{"type":"of a later version"}\n{"torn'
    file = tmp_path / "elsewhere.jsonl"
    file.write_bytes(data)
    with pytest.raises(SessionError, match="is here already, as trip"):
        import_file(file)

    import_file(file, "copy")
    store.remove(path)
    [one], _ = import_file(file)

    assert ("elsewhere", 2, data) == (one.name, one.turns, store.find("elsewhere").read_bytes())
    assert [
        "The last line of elsewhere (line 5) was cut off and is left out.",
        "elsewhere: line 4 not understood, left out and kept in the file.",
    ] == list(one.notices)
    assert data.partition(b"\n")[2] == store.find("copy").read_bytes().partition(b"\n")[2]
    assert Session(store.find("copy")).id != Session(store.find("elsewhere")).id


@pytest.mark.parametrize("fill", ["x", "é", '"'])
def test_a_log_is_known_however_long_its_system_prompt_is(tmp_path: Path, fill: str) -> None:
    path = saved("trip", "Hi", "Hello")
    header, _, rest = path.read_text("utf-8").partition("\n")
    told = json.loads(header) | {"system": fill * (1 << 17)}
    data = f"{json.dumps(told, ensure_ascii=False)}\n{rest}".encode()
    file = tmp_path / "elsewhere.jsonl"
    file.write_bytes(data)
    store.remove(path)

    [one] = taken(file)

    assert (data, fill * (1 << 17)) == (one.path.read_bytes(), one.system)


def test_a_taken_name_gets_a_number_and_as_names_the_only_one(tmp_path: Path) -> None:
    file = written(tmp_path, [{"role": "user", "content": "Hi"}])

    assert ["hi", "hi-2"] == [taken(file)[0].name, taken(file)[0].name]
    assert "other" == taken(file, "other")[0].name
    with pytest.raises(SessionError, match="There is a session 'other' already"):
        import_file(file, "other")
    with pytest.raises(SessionError, match="has 2 conversations, and --as names one"):
        import_file(FOREIGN / "sharegpt.json", "two")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no conversation"),
        ("[]", "has no conversation"),
        ("hello", "is no JSON that can be read: Expecting value at character 1"),
        ("<!DOCTYPE html>", "is no JSON that can be read"),
        ('[{"messages": []}', "a ] is missing at character 18"),
        ('{"a": 1, "b": 2}', "conversation 1: an object with 'a', 'b' is none"),
        ("[1]", "conversation 1: 1 is none"),
        ("[" * 100_000, "nested too deep"),
        ("1" * 5000, "is no JSON that can be read"),
        ('[{"messages": 3}]', "conversation 1: its messages are no list"),
        ('[{"mapping": []}]', "conversation 1: its mapping is no table of messages"),
        ('{"messages": [{"role": "robot", "content": ""}]}', "message 1 has the role 'robot'"),
        ('{"messages": [{"role": ["user"], "content": ""}]}', "message 1 has the role"),
        ('{"messages": [{"role": "user", "content": 3}]}', "message 1 has no text"),
        ('{"conversations": ["x"]}', "message 1 is no object"),
        ('{"format": "flarechat-session", "version": 9}', "has session format 9"),
        (b"\xff\xfe{", "is not UTF-8 at byte 0"),
        (b"PK\x03\x04 and no more", "is no bundle that can be imported"),
    ],
)
def test_a_file_that_is_none_of_these_gets_a_sentence(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(SessionError, match=message.replace("[", r"\[")) as caught:
        import_file(file)

    assert str(file) in caught.value.message
    assert [] == os.listdir(paths.sessions_dir())


def test_a_conversation_in_which_nothing_is_said_is_counted(tmp_path: Path) -> None:
    chats = [{"messages": [{"role": "system", "content": "x"}]}, {"messages": []}]
    good = {"messages": [{"role": "user", "content": "Hi"}]}
    file = written(tmp_path, [*chats, good])

    taken, notices = import_file(file)

    assert (1, [f"{file}: left out 2 in which nothing is said."]) == (len(taken), notices)
    with pytest.raises(SessionError, match="has no conversation"):
        import_file(written(tmp_path, chats))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "is no file"), (tmp_path / "none", "No such file")):
        with pytest.raises(SessionError, match=why):
            import_file(path)


def test_one_bad_conversation_keeps_all_of_its_file_out(tmp_path: Path) -> None:
    good = {"messages": [{"role": "user", "content": "Hi"}]}

    with pytest.raises(SessionError, match="conversation 3: "):
        import_file(written(tmp_path, [good, good, {"messages": [3]}]))

    assert [] == os.listdir(paths.sessions_dir())


def test_a_disk_that_refuses_in_the_middle_keeps_all_of_a_file_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    move, moved = os.replace, []

    def full(source: Path, target: Path) -> None:
        if moved:
            raise OSError(28, "No space left on device")
        moved.append(target)
        move(source, target)

    monkeypatch.setattr(os, "replace", full)

    with pytest.raises(StorageError, match="No space left"):
        import_file(FOREIGN / "sharegpt.json")

    assert [] == os.listdir(paths.sessions_dir())


def test_a_cycle_of_messages_is_said_and_ends(tmp_path: Path) -> None:
    message = {"author": {"role": "user"}, "content": {"parts": ["x"]}}
    mapping = {
        "a": {"parent": "b", "children": ["b"], "message": message},
        "b": {"parent": "a", "children": ["a"], "message": message},
        "c": {"parent": "none", "children": ["c", "a", 3], "message": message},
    }

    [one], _ = import_file(written(tmp_path, {"mapping": mapping, "create_time": float("nan")}))

    assert 1 == one.turns
    assert "message without a beginning ×2" in one.notices[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.lists(JSON, max_size=5), st.sampled_from([" ", "\n", "\n\n "]), st.integers(1, 9))
@settings(deadline=None)
def test_values_come_one_by_one_however_the_file_is_cut(
    found: list[Any], blank: str, piece: int
) -> None:
    text = blank.join(json.dumps(value, ensure_ascii=False) for value in found)
    expected = []
    for value in found:
        expected += value if isinstance(value, list) else [value]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonvalues, "_PIECE", piece)
        assert expected == [value for _, value in jsonvalues.values(io.StringIO(text))]


def test_a_file_of_many_is_not_read_as_a_whole() -> None:
    class Endless(io.StringIO):
        read_so_far = 0

        def read(self, size: int | None = -1) -> str:
            assert size is not None and size > 0, "as a whole"
            self.read_so_far += size
            return ('[{"a": 1}' if self.read_so_far == size else "") + ', {"a": 1}' * 1000

    file = Endless()
    values = jsonvalues.values(file)

    assert [{"a": 1}] * 50 == [next(values)[1] for _ in range(50)]
    assert file.read_so_far <= 2 * jsonvalues._PIECE
