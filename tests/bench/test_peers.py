"""The comparison with other engines: its lines, its order, its figures; engines are stand-ins."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.h200.page import MISSING
from benchmarks.h200.record import Box, Run
from benchmarks.h200.rows import Data, load
from benchmarks.peers import compare, crew, goals, page, prompts, sections, tables
from benchmarks.peers.crew import ANSWERING, FLARECHAT, HISTORY, LLAMA, OFF, TRANSFORMERS, Crew
from benchmarks.peers.peer import Noise, Peer, PeerError, Spec, involuntary, resident
from benchmarks.peers.prompts import QUICK
from benchmarks.peers.wire import Ask, Clock, Told
from flarechat.engine.language import Language
from tests.models import tiny

ASK = Ask(messages=[{"role": "user", "content": "Hello"}], ids=[5, 6, 7], tokens=8)
RATES = {OFF: 150.0, HISTORY: 350.0, LLAMA: 100.0, crew.PLAIN: 10.0}
SIZES = replace(
    QUICK, questions={"chat": 2, "4K": 1}, repeats={"greedy": 2, "sampled": 1}, prompt_repeats=2,
    seconds=dict.fromkeys(compare.SECTIONS, 60.0),
)  # fmt: skip


def fake(name: str, *flags: str) -> Spec:
    return Spec(name=name, python=sys.executable, module="tests.bench.fake_peer", flags=flags)


def fakes(setting: crew.Setting) -> dict[str, Spec]:
    """A stand-in for every peer; llama.cpp's text leaves flarechat's at its fourth token."""
    return {
        name: fake(
            name, "--rate", str(RATES.get(name, 120.0)), "--differs-at",
            "3" if name == LLAMA else "1000",
        )
        for name in crew.specs_of(setting)
    }  # fmt: skip


SETTING = crew.Setting(model="m.gguf", python="python", server="llama-server")


@pytest.fixture
def started() -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def start(*flags: str) -> Peer:
        peers.append(Peer.start(fake("fake", *flags)))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Language:
    folder = tmp_path_factory.mktemp("tiny")
    return compare.language(str(tiny.write(folder / "tiny.gguf").path), folder)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, language: Language) -> Path:
    """The JSON of a run of all sections over stand-ins."""
    run = Run(
        tmp_path_factory.mktemp("out"), "r",
        {"date": "2026-11-30", "revision": "abc", "command": "compare",
         "machine": {"processor": "none", "cores": 2}, "versions": {"python": "3"}}, 600,
    )  # fmt: skip
    compare.play(run, Crew(SETTING, specs=fakes), language, SIZES, list(compare.SECTIONS))
    assert run.failed == []
    return run.write()


# The clock and the lines.


def test_a_rate_counts_the_tokens_after_the_first_ones() -> None:
    told = Told(tokens=range(11), first_ms=300.0, first_tokens=3, decode_ms=400.0)

    assert told.rate == pytest.approx(8 / 0.4)
    assert replace(told, tokens=range(3)).rate == 0.0


def test_the_clock_stops_at_the_last_tokens_and_an_empty_answer_is_refused() -> None:
    clock = Clock()
    with pytest.raises(ValueError, match="no token"):
        clock.told()
    time.sleep(0.02)
    clock.got([1, 2])
    time.sleep(0.03)
    clock.got([3])
    clock.got([])
    time.sleep(0.05)
    told = Told(**clock.told(prompt=[9], restored=4))

    assert (list(told.tokens), told.first_tokens, told.restored) == ([1, 2, 3], 2, 4)
    assert told.first_ms >= 20 and 30 <= told.decode_ms < 80


def test_a_peer_answers_and_its_chatter_is_no_line(started: Callable[..., Peer]) -> None:
    peer = started("--rate", "50")
    told, noise = peer.ask(ASK)

    assert told.rate == pytest.approx(50) and list(told.tokens) == list(range(8))
    assert peer.ready_ms > 0 and isinstance(noise, Noise)


def test_a_failure_is_said_and_the_peer_goes_on(started: Callable[..., Peer]) -> None:
    peer = started("--fault", "fails")
    for _ in range(2):
        with pytest.raises(PeerError, match="fake: ValueError: no such law"):
            peer.ask(ASK)
    assert peer.call("passes", {"widths": [1], "repeats": 2})["ms"] == {"1": [5.0, 5.0]}


def test_other_tokens_of_a_prompt_are_refused(started: Callable[..., Peer]) -> None:
    with pytest.raises(PeerError, match=r"other tokens of the prompt: \[0, 5, 6, 7\]"):
        started("--fault", "other tokens").ask(ASK)


def test_a_peer_that_dies_is_named_with_its_status() -> None:
    with pytest.raises(PeerError, match="gone ended with status 3"):
        Peer.start(fake("gone", "--fault", "dies"))


def test_memory_and_switches_are_read_of_a_process() -> None:
    found = resident([os.getpid()])

    assert 0 < found["anonymous"] < found["resident"] <= found["peak"]
    assert involuntary([os.getpid()]) >= 0
    assert resident([2**30]) == {"resident": 0, "anonymous": 0, "peak": 0}


# Order.


def test_turns_go_forwards_and_backwards() -> None:
    assert [list(crew.turns("ab", number)) for number in range(3)] == [
        ["a", "b"], ["b", "a"], ["a", "b"],
    ]  # fmt: skip


def test_every_arm_has_its_flags_and_a_missing_server_is_left_out() -> None:
    specs = crew.specs_of(replace(SETTING, server=None, flash="on"))

    assert not {crew.SERVER, crew.NGRAM} & set(specs)
    assert specs[HISTORY].flags[-2:] == ("--arm", "adaptive+history")
    assert specs[LLAMA].command[:3] == ["python", "-m", "benchmarks.peers.llama_peer"]
    assert specs[crew.LOOKUP].flags[-2:] == ("--flash", "on")
    assert set(crew.specs_of(SETTING)) == {*ANSWERING, crew.PASSES}


def test_the_crew_keeps_peers_until_they_are_ended_and_settles_on_what_llama_says() -> None:
    own = Crew(SETTING, specs=fakes)
    try:
        own.settle()
        first = own.get(LLAMA)
        assert own.setting.flash == "on" and own.get(LLAMA) is first
        own.end([LLAMA, OFF])
        assert first.process.returncode == 0 and own.get(LLAMA) is not first
        assert own.sized(64).setting.context == 64
    finally:
        own.close()


def test_spinning_ends_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "SPIN", "import time; time.sleep(60)")
    with pytest.raises(RuntimeError), sections.spinning() as process:
        raise RuntimeError
    assert process.returncode is not None


# Prompts.


def test_prompts_of_a_length_begin_each_in_their_own_way(language: Language) -> None:
    asks = [prompts.of_length(language, 600, number) for number in (1, 2)]

    assert all(600 <= len(ask.ids) < 700 for ask in asks)
    assert prompts.leading(asks[0].ids, asks[1].ids) < 12


def test_common_beginnings_are_counted() -> None:
    assert prompts.leading([1, 2, 3], [1, 2, 4]) == 2
    assert prompts.leading([1, 2], [1, 2, 3]) == 2
    assert prompts.leading([], [1]) == 0


# A whole run.


def test_a_run_plays_everybody_as_often_as_it_should(played: Path) -> None:
    rows = load([played]).rows["speed"]
    counts = Counter(row["engine"] for row in rows)

    often = len({row["prompt"] for row in rows if row["context"] != "4K"})
    # The deep one is asked once, greedily.
    assert counts[OFF] == counts[LLAMA] == often * sum(SIZES.repeats.values()) + 1
    # Only the first repeat, by either law, and the first prompt of chat, edits and repetitions.
    assert counts[crew.PLAIN] == 2 * 3
    assert {row["engine"] for row in rows} == set(ANSWERING)
    first = [row["engine"] for row in rows if row["prompt"] == 0 and row["law"] == "greedy"]
    assert first == [*ANSWERING, *reversed([n for n in ANSWERING if n not in TRANSFORMERS])]


def test_flarechat_is_started_anew_for_every_pass_and_the_others_are_kept(
    language: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: Counter[str] = Counter()
    start = Crew.start

    def counted(self: Crew, name: str) -> Peer:
        starts[name] += 1
        return start(self, name)

    monkeypatch.setattr(Crew, "start", counted)
    own, small = Crew(SETTING, specs=fakes), replace(SIZES, questions={"chat": 1})
    compare.play(Run(tmp_path, "r", {}, 600), own, language, small, ["speed"])

    assert {starts[name] for name in FLARECHAT} == {3}
    assert starts[LLAMA] == 1


def test_every_table_is_filled_and_shows_the_rates(played: Path) -> None:
    data = load([played])

    assert [name for name, table in tables.TABLES.items() if table(data) is None] == []
    shown = tables.TABLES["speed-greedy"](data)
    assert shown is not None and shown.columns == ("engine", "chat", "4K", "edit", "repeat")
    assert {row[0]: row[1] for row in shown.rows}[OFF] == "150.0 (1.50x)"
    agreed = tables.TABLES["agreement"](data)
    assert agreed is not None and {r[0]: r[1] for r in agreed.rows}[LLAMA] == "3/48, 3/48"
    assert len([r for r in data.rows["busy"] if r["core"] == "busy"]) == 4


def test_goals_are_held_against_the_figures(played: Path) -> None:
    shown = goals.goals(load([played]))
    assert shown is not None
    found = {row[0]: row[1:] for row in shown.rows}

    assert found["plain decoding against llama.cpp, chat"] == ("≥ 1.3", "1.50", "yes")
    assert found["plain decoding against llama.cpp, 1,024 tokens"][1:] == ("not measured", "")
    assert found["adaptive with copies against llama.cpp, edits"] == ("≥ 3", "3.50", "yes")
    assert found["plain decoding against transformers, chat"] == ("≥ 8", "15.00", "yes")
    assert found["a pass of W=4 against W=1 at 256 tokens"] == ("≤ 1.5", "1.60", "no")
    assert found["first token of 512 against llama.cpp's"] == ("≤ 1", "1.00", "yes")
    assert found["ready, in seconds"][2] == "yes"


def test_a_ratio_pairs_the_same_prompt_in_the_same_repeat() -> None:
    data = Data()
    rates = {0: (30.0, 10.0), 1: (40.0, 80.0), 2: (90.0, 30.0)}
    for repeat, (own, other) in rates.items():
        for engine, rate in ((OFF, own), (LLAMA, other)):
            data.rows["speed"].append(
                {"engine": engine, "law": "greedy", "context": "chat", "prompt": 0,
                 "repeat": repeat, "rate": rate}
            )  # fmt: skip

    assert goals.paired(data.rows["speed"], OFF, LLAMA) == 3.0
    assert goals.paired(data.rows["speed"], OFF, "nobody") is None


def test_a_box_that_is_over_leaves_the_rest_out(language: Language, tmp_path: Path) -> None:
    run, own = Run(tmp_path, "r", {}, 600), Crew(SETTING, specs=fakes)
    try:
        for section in (sections.passes, sections.memory, sections.start):
            box = Box(0.0)
            section(run, own, language, SIZES, box)
            assert box.cut and run.tables == {}
    finally:
        own.close()


# The page and the command line.


def test_the_page_asks_for_every_table_once() -> None:
    asked = re.findall(r"<!-- table: ([\w-]+) -->", page.PAGE.read_text("utf-8"))

    assert sorted(asked) == sorted(tables.TABLES)


def test_the_page_is_filled_and_its_prose_is_left_alone(played: Path, tmp_path: Path) -> None:
    target, before = tmp_path / "cpu.md", page.PAGE.read_text("utf-8")
    target.write_text(before, "utf-8")
    assert page.main([str(played), "--page", str(target)]) == 0
    after = target.read_text("utf-8")

    def prose(text: str) -> str:
        return re.sub(r"(<!-- table: .*? -->).*?(?=<!-- end -->)", r"\1", text, flags=re.DOTALL)

    assert prose(after) == prose(before)
    assert MISSING not in after and "| flarechat off | 150.0 (1.50x) |" in after


def test_an_unknown_table_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'speeed'"):
        page.filled("<!-- table: speeed -->\n<!-- end -->\n", Data(), tables.TABLES)


@pytest.mark.parametrize(
    "words, said",
    [
        (["--sections", "sped"], "--sections sped is unknown"),
        (["--env", "/nowhere"], "--env /nowhere has no bin/python; benchmarks/peers/setup.sh"),
    ],
)
def test_a_wrong_command_line_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main(["--env", str(tmp_path), "--out", str(tmp_path), *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
