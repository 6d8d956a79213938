"""The measurements of captured rounds: the dry run, what is counted, what the page makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.h200 import equality, floor, lanes, page, rounds, tables, taps, texts
from benchmarks.h200.bare import captured, device_seconds, replays_of
from benchmarks.h200.desk import Desk, Setup, Told
from benchmarks.h200.record import Box, Run
from benchmarks.h200.rows import Data, load
from benchmarks.h200.sizes import DRY
from flarechat.engine.slot import SlotPool
from flarechat.protocol import Round
from tests.models import tiny

PAGE = Path(__file__).parents[2] / "docs" / "cuda.md"
SCRIPT = Path(rounds.__file__).with_name("run.sh")
ONLY_ON_A_GPU = ("kernels",)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return rounds.dry_setup(tmp_path_factory.mktemp("dry"))


@pytest.fixture(scope="module")
def desk(setup: Setup) -> Iterator[Desk]:
    made = Desk(setup)
    yield made
    made.close()


@pytest.fixture(scope="module")
def graph_desk(setup: Setup) -> Iterator[Desk]:
    made = Desk(setup, executor="graph")
    yield made
    made.close()


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JSON of a dry run of every section."""
    out = tmp_path_factory.mktemp("out")
    assert rounds.main(["--dry", "--out", str(out), "--revision", "abc1234"]) == 0
    return out / "rounds.json"


@pytest.mark.slow
def test_a_dry_run_plays_every_section_and_fills_every_table(dry: Path) -> None:
    said, data = json.loads(dry.read_text()), load([dry])

    assert list(said["sections"]) == list(rounds.SECTIONS)
    assert [e["failure"] for e in said["sections"].values()] == [None] * len(rounds.SECTIONS)
    assert not any(entry["cut"] for entry in said["sections"].values())
    assert said["sections"]["transformers"]["figures"]["failures"] == {}
    assert said["revision"] == "abc1234" and said["dry"] and said["versions"]["torch"]
    assert {name for name, table in tables.TABLES.items() if table(data) is None} == {
        *ONLY_ON_A_GPU
    }


@pytest.mark.slow
def test_the_dry_run_counts_the_tokens_its_answers_have(dry: Path) -> None:
    rows = load([dry]).rows["speed"]

    assert max(row["tokens"] for row in rows) == DRY.tokens
    assert {(row["arm"], row["context"]) for row in rows if row["law"] == "match"} == {
        (arm, context) for arm in texts.ARMS for context in DRY.contexts
    }
    assert all(
        row["rate"] == pytest.approx(row["tokens"] / row["seconds"], rel=1e-4) for row in rows
    )
    assert all(row["accepted"] <= row["offered"] for row in rows)
    long, short = (
        {row["prompt_tokens"] for row in rows if row["context"] == name} for name in ("1K", "short")
    )
    assert max(short) < 200 < min(long)


@pytest.mark.slow
def test_equal_engines_are_found_equal_in_tokens_records_and_state(dry: Path) -> None:
    rows = load([dry]).rows["equality"]

    assert all(row["same_tokens"] == 1 for row in rows)
    assert all(row["state_abs"] == 0 for row in rows if row["same_plans"])
    # Where each chose its own widths, sums are rounded in their own way.
    assert all(row["state_rel"] < 1e-5 for row in rows)
    assert {row["arm"] for row in rows if row["records"]} >= {"off", "fixed-3", "fixed-7"}
    assert all(row["same_records"] == 1 for row in rows if row["records"])
    # Slots' columns, and what each state has: keys and values of all layers are one.
    assert all(row["states"] >= 19 for row in rows if row["case"] == equality.SINGLE)
    assert {row["restored"] > 0 for row in rows if row["case"] == equality.SECOND} == {True}


@pytest.mark.slow
def test_the_page_is_filled_from_a_run(dry: Path, tmp_path: Path) -> None:
    target, picture = tmp_path / "cuda.md", tmp_path / "plot.svg"
    before = PAGE.read_text("utf-8")
    target.write_text(before, "utf-8")

    assert page.main([str(dry), "--page", str(target), "--plot", str(picture)]) == 0

    after = target.read_text("utf-8")
    assert after.count(page.MISSING) == len(ONLY_ON_A_GPU)
    assert _prose(after) == _prose(before)
    shown = ElementTree.parse(picture).getroot()
    bars = [e for e in shown.iter("{http://www.w3.org/2000/svg}rect") if list(e)]
    assert len(bars) == 2 * len(page.SHOWN_ARMS) + 3


def _prose(text: str) -> str:
    return re.sub(r"(<!-- table: .*? -->).*?(?=<!-- end -->)", r"\1", text, flags=re.DOTALL)


def test_the_page_asks_for_every_table_once() -> None:
    asked = re.findall(r"<!-- table: ([\w-]+) -->", PAGE.read_text("utf-8"))

    assert sorted(asked) == sorted(tables.TABLES)


def test_an_unknown_table_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'speeed'"):
        page.filled("<!-- table: speeed -->\n<!-- end -->\n", Data())


def test_a_section_that_fails_is_written_down_and_the_next_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, "r", {}, 60)

    def fails(box: Box) -> dict[str, Any]:
        run.table("half").add(law="ratio", rate=12.3456789)
        raise RuntimeError("no such kernel")

    run.section("first", fails, 10)
    run.section("second", lambda box: {"figure": 7}, 10)

    said = json.loads((tmp_path / "r.json").read_text())["sections"]
    assert said["first"]["failure"] == "RuntimeError: no such kernel"
    assert said["second"]["figures"] == {"figure": 7}
    assert run.failed == ["first"]
    assert load([tmp_path / "r.json"]).rows["half"] == [{"law": "ratio", "rate": 12.3457}]


def test_a_section_without_time_is_not_begun(tmp_path: Path) -> None:
    run, begun = Run(tmp_path, "r", {}, 0), list[Box]()

    run.section("late", lambda box: {"begun": begun.append(box)}, 10)

    assert begun == [] and run.said["sections"]["late"]["cut"]


def test_two_runs_make_one_set_of_rows(tmp_path: Path) -> None:
    for name, rate in (("checks", 1.0), ("speed", 2.0)):
        run = Run(tmp_path, name, {}, 60)
        run.section(name, lambda box, run=run, rate=rate: run.table("t").add(rate=rate) or {}, 10)
        run.write()

    data = load([tmp_path / "checks.json", tmp_path / "speed.json"])
    assert [row["rate"] for row in data.rows["t"]] == [1, 2]


def _speed(arm: str, context: str, rate: float, **more: Any) -> dict[str, Any]:
    counts = {"tokens": 30, "rounds": 20, "offered": 40, "accepted": 10}
    return {"law": "ratio", "arm": arm, "context": context, "rate": rate} | counts | more


def test_rates_are_medians_and_ratios_are_against_off_at_the_same_context() -> None:
    data = Data()
    data.rows["speed"] = [
        *(_speed("off", "short", rate) for rate in (100, 90, 400)),
        *(_speed("off", "8K", rate) for rate in (50, 50)),
        *(_speed("adaptive", "short", rate) for rate in (250, 10, 1000)),
        _speed("adaptive", "8K", 75),
        _speed("off", "short", 9999) | {"law": "match"},
    ]

    assert tables.TABLES["speed"](data) == tables.Shown(
        ("arm", "short", "8K"),
        [("off", "100 (1.00x)", "50 (1.00x)"), ("adaptive", "250 (2.50x)", "75 (1.50x)")],
    )
    shown = tables.TABLES["drafts"](data)
    assert shown is not None and shown.rows[1] == ("adaptive", "1.50, 25 %", "1.50, 25 %")


def test_rates_in_all_weigh_answers_by_their_tokens() -> None:
    data = Data()
    data.rows["speed"] = [
        _speed("off", "short", 0, seconds=2.0),
        _speed("adaptive", "short", 0, seconds=0.5),
        _speed("adaptive", "short", 0, seconds=1.0, tokens=90),
    ]

    assert tables.TABLES["speed-in-all"](data) == tables.Shown(
        ("arm", "short"), [("off", "15 (1.00x)"), ("adaptive", "80 (5.33x)")]
    )


def test_the_ratio_to_transformers_is_to_its_fastest_way() -> None:
    data = Data()
    data.rows["speed"] = [_speed("adaptive", "short", 600)]
    data.rows["transformers"] = [
        {"way": way, "context": "short", "rate": rate}
        for way, rate in (("plain", 40), ("plain", 60), ("compiled", 200), ("compiled", 100))
    ]

    shown = tables.TABLES["transformers"](data)
    assert shown is not None
    assert shown.rows == [
        ("plain", "50"), ("compiled", "150"), ("flarechat adaptive", "600 (4.00x)"),
    ]  # fmt: skip


def test_a_planted_difference_of_state_is_found_and_measured() -> None:
    left = {"keys": torch.tensor([1.0, -8.0]), "count": torch.tensor([3])}

    assert equality.difference(left, dict(left)) == (0.0, 0.0, "")
    moved = left | {"keys": torch.tensor([1.5, -8.0])}
    assert equality.difference(left, moved) == (0.5, 0.0625, "keys")
    assert equality.difference(left, left | {"count": torch.tensor([3, 4])})[2] == "count"


def test_a_planted_difference_of_engines_is_found(setup: Setup, tmp_path: Path) -> None:
    """The second engine takes another token in one round; tokens, records and state tell."""
    sizes = replace(DRY, lanes=(1,))
    one, other = (equality.Witness(Desk(setup), sizes) for _ in range(2))
    run = Run(tmp_path, "r", {}, 60)
    for witness in (one, other):
        if witness is other:
            embedding = witness.desk.executor.target.embedding
            embedding[:, 0] += 0.5
        witness._single("greedy", texts.arms(("fixed-3",))[0], 0)
        witness.desk.close()
    equality.compare(run, one, other)

    (single, *_) = run.table("equality").rows
    assert (single["same_tokens"], single["same_records"]) == (0, 0)
    assert 0 <= single["first_apart"] < sizes.equality_tokens


def test_answers_part_where_their_first_token_differs() -> None:
    assert equality.first_apart((1, 2, 3), (1, 2, 3)) == -1
    assert equality.first_apart((1, 2, 3), (1, 9, 3)) == 1
    assert equality.first_apart((1, 2, 3), (1, 2)) == 2


def _round(emitted: int) -> Round:
    return SimpleNamespace(emitted=emitted)  # type: ignore[return-value]


def test_only_tokens_of_rounds_that_all_lanes_shared_are_counted() -> None:
    def told(began: float, times: Sequence[float]) -> Told:
        return Told(
            request="r", finished=None, rounds=tuple(_round(2) for _ in times),  # type: ignore[arg-type]
            times=tuple(times), restored=0, began=began, ended=times[-1],
        )  # fmt: skip

    assert lanes.in_window([told(0, (1, 2, 3, 4, 9)), told(2.5, (3, 4, 5))]) == (10, 2.5)


def test_host_time_of_a_part_leaves_out_the_parts_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr(taps.time, "perf_counter", lambda: next(ticks))
    clock = taps.HostClock()
    inner = clock.timing("inner")(lambda: None)

    clock.timing("outer")(lambda: inner())()

    assert dict(clock.spent) == {"inner": 3.0, "outer": 7.0}


def test_taps_are_taken_off_again(desk: Desk) -> None:
    play, step = desk.executor.play, desk.engine.step
    with taps.plays(desk) as seen, taps.host_clock(desk) as clock:
        told = desk.ask("Hello", texts.arms(("off",))[0], texts.LAWS["match"], 4)

    assert len(seen.plans) >= len(told.rounds) == 4
    assert {"engine", "launch", "play", "wait", "emit"} <= set(clock.spent)
    assert (desk.executor.play, desk.engine.step) == (play, step)
    assert "play" not in vars(desk.executor)


@pytest.mark.parametrize("played", ["desk", "graph_desk"])
def test_a_bare_replay_plays_the_same_rounds_from_the_same_state(
    played: str, request: pytest.FixtureRequest
) -> None:
    desk = request.getfixturevalue(played)
    (arm,) = texts.arms(("fixed-3",))
    with taps.plays(desk) as seen:
        told = desk.ask("Once upon a time", arm, texts.LAWS["match"], 9)
    pool, halfway = desk.engine.pool, len(told.rounds) // 2
    prompt = told.finished.usage.prompt_tokens

    device_seconds(desk, seen, replays_of(desk, seen, halfway), 1)

    tokens = [token for played in told.rounds[:halfway] for token in played.tokens]
    assert int(pool.generated[0]) == len(tokens) > 0
    assert int(pool.pending[0]) == tokens[-1]
    assert int(pool.consumed[0]) == prompt + len(tokens) - 1


def test_a_captured_round_is_replayed_without_its_executor(graph_desk: Desk) -> None:
    (arm,) = texts.arms(("fixed-2",))
    with taps.plays(graph_desk) as seen:
        graph_desk.ask("Once upon a time", arm, texts.LAWS["match"], 5)
    replays = replays_of(graph_desk, seen, 2)

    with taps.plays(graph_desk) as again:
        device_seconds(graph_desk, seen, replays, 1)

    assert captured(graph_desk) and again.plans == []
    staged = graph_desk.executor.staging._block.host
    assert seen.staged.any() and (staged == seen.staged).all()


def test_prompts_are_read_in_the_pieces_of_a_captured_prefill(desk: Desk, graph_desk: Desk) -> None:
    catalogue = graph_desk.executor.catalogue
    assert all(taps.pieces(n) == catalogue.pieces(n) for n in range(257))

    lengths: list[int] = []

    def around(call: Any) -> Any:
        return lambda lanes, inputs, plan: (
            lengths.append(inputs.shape[1]) or call(lanes, inputs, plan)
        )

    with taps.wrapped(desk.executor, "prefill", around), taps.in_pieces(desk):
        desk.forget_prefixes()
        told = desk.ask("Once upon a time", texts.arms(("off",))[0], texts.LAWS["greedy"], 1)
    assert lengths == taps.pieces(told.finished.usage.prompt_tokens - 1)


def test_forgotten_history_is_not_copied(desk: Desk) -> None:
    (arm,) = texts.arms((texts.HISTORY,))
    desk.forget_history()
    desk.ask("Say it", arm, texts.LAWS["greedy"], 12)
    copies = desk.engine.drafter.copies  # type: ignore[attr-defined]
    before = [len(s.index) for s in copies.sources if s.name == "history"]
    desk.forget_history()

    assert before == [12]
    assert [len(s.index) for s in copies.sources if s.name == "history"] == [0]


def test_a_question_comes_last_behind_as_many_tokens_as_asked() -> None:
    def count(text: str) -> int:
        return len(text.split())

    long = texts.behind("Why is it so?", 500, count, seed=3)

    assert long.endswith("Why is it so?")
    assert 480 <= count(long) <= 530
    assert long == texts.behind("Why is it so?", 500, count, seed=3)
    assert texts.behind("Why is it so?", 0, count, seed=3) == "Why is it so?"
    notes = [line for line in long.splitlines() if line[0:1].isdigit()]
    assert len({line.split(". ", 1)[1] for line in notes}) == len(notes)


def test_the_bytes_of_a_round_are_those_of_the_weights_the_rows_and_the_logits(desk: Desk) -> None:
    values = tiny.weights()
    row = 2 * tiny.LAYERS * tiny.KV_HEADS * tiny.HEAD_DIM * 4

    moved = floor.bytes_moved(desk, floor.Case("off", 7, "copies"), 100)

    assert moved == {
        "weights": sum(4 * value.size for value in values.values()),
        "rows": row * 108,
        "logits": 2 * 8 * len(tiny.vocabulary()) * 4,
    }
    chain = [floor.bytes_moved(desk, floor.Case("fixed-3", k, "mtp"), 100)["chain"] for k in (1, 3)]
    assert chain[1] == 3 * chain[0]


def test_passes_turn_the_arms_round_and_measure_chat_first() -> None:
    order = rounds.speed.passes(replace(DRY, repeats=2), drafts=True)
    first, again = (
        [arm.name for law, context, arm, repeat in order if (law, context, repeat) == wanted]
        for wanted in (("ratio", "short", 0), ("ratio", "short", 1))
    )

    assert first == list(texts.ARMS) and again == first[::-1]
    assert order[0][:2] == ("ratio", "short")


def test_the_script_names_sections_there_are() -> None:
    named = re.findall(r"\) measure \w+ ([\w,]+) ;;", SCRIPT.read_text("utf-8"))

    assert sorted(",".join(named).split(",")) == sorted(rounds.SECTIONS)


def test_after_a_lost_device_the_other_sections_go_on_in_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def start(call: list[str], check: bool) -> SimpleNamespace:
        calls.append(call)
        return SimpleNamespace(returncode=1)

    def lost(*_: object) -> dict[str, Any]:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(rounds.subprocess, "run", start)
    monkeypatch.setattr(rounds, "device_lost", lambda setup: True)
    monkeypatch.setitem(rounds.SECTIONS, "service", lost)
    given = ["--dry", "--out", str(tmp_path), "--sections", "service,memory,lanes"]

    assert rounds.main(given) == 1

    (call,) = calls
    asked = rounds.parser().parse_args(call[3:])
    assert (asked.sections, asked.resumed, asked.out) == ("memory,lanes", True, str(tmp_path))
    monkeypatch.setitem(rounds.SECTIONS, "memory", lambda *_: {})
    rounds.main([*call[3:-4], "--sections", "memory"])
    said = json.loads((tmp_path / "rounds.json").read_text())["sections"]
    assert [said[name]["failure"] is None for name in said] == [False, True]


def test_an_unknown_section_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        rounds.main(["--dry", "--out", str(tmp_path), "--sections", "sped"])

    assert "sped" in capsys.readouterr().err


def test_a_pool_is_put_back_in_place(desk: Desk) -> None:
    pool = SlotPool(1, 8, 4, torch.device("cpu"))
    seen = taps.Plays(pool={name: t.clone() for name, t in pool.tensors().items()})
    address = pool.consumed.data_ptr()
    pool.consumed += 5

    seen.reset(
        SimpleNamespace(engine=SimpleNamespace(pool=pool), executor=SimpleNamespace(staging=None))
    )  # type: ignore[arg-type]

    assert int(pool.consumed[0]) == 0 and pool.consumed.data_ptr() == address
