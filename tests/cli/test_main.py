"""The process: help, versions, refusals in one sentence, crashes in a file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from flarechat import __version__, paths
from flarechat.__main__ import main
from flarechat.cli import bench
from tests.cli.conftest import Cli

HEAVY = ("torch", "textual", "transformers", "rich", "numpy")
LIGHT = (
    "flarechat.cli",
    "flarechat.config",
    "flarechat.chat",
    "flarechat.sessions.store",
    "flarechat.launch",
    "flarechat.cli.turn",
    "flarechat.cli.checks",
    "flarechat.__main__",
)


def test_importing_the_application_loads_nothing_heavy() -> None:
    script = (
        f"import sys, importlib\nfor name in {LIGHT!r}: importlib.import_module(name)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert ("[]\n", "") == (done.stdout, done.stderr)


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("sessions", "--help")])
def test_help_loads_only_what_it_prints(arguments: tuple[str, ...]) -> None:
    heavy = (*HEAVY, "flarechat.protocol", "flarechat.chat", "platformdirs")
    script = (
        f"import sys\nfrom flarechat.__main__ import main\ncode = main({arguments!r})\n"
        f"print(code, [name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert "0 []\n" == done.stderr


def test_help_comes_quickly() -> None:
    def seconds() -> float:
        """A processor's, as other tests may have the processors meanwhile."""
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "flarechat", "--help"], stdout=subprocess.DEVNULL, check=True
        )
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])

    assert min(seconds() for _ in range(5)) < 0.5


def test_help_groups_the_options_and_states_every_default(cli: Cli) -> None:
    got = cli("run", "--help")

    assert (0, "") == (got.code, got.err)
    for head in ("Arguments:", "Options:", "Model:", "Sampling:", "Answer:", "Drafting:"):
        assert f"\n{head}\n" in got.out
    flags = [line for line in got.out.splitlines() if line.startswith("  --")]
    assert 44 == len(flags)
    for flag in ("--json-schema", "--json-answer", "--regex", "--grammar"):
        assert any(line.split()[0] == flag for line in flags)


def test_every_command_and_option_says_what_it_does_and_its_default() -> None:
    from typer.main import get_command

    from flarechat.cli import app

    waiting = [get_command(app)]
    seen = []
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        assert command.help, command.name
        for parameter in command.params:
            seen.append(parameter.name)
            text = getattr(parameter, "help", "") or ""
            stated = "efault: " in text or parameter.default not in (None, False)
            exempt = parameter.param_type_name == "argument" or parameter.name == "version"
            assert text and (stated or exempt), (command.name, parameter.name)
    assert {"prompt", "top_p", "resume", "arms", "as_json", "yes"} <= set(seen)


def test_the_version_is_printed(cli: Cli) -> None:
    got = cli("--version")

    assert (0, f"flarechat {__version__}\n", "") == (got.code, got.out, got.err)


def test_a_broken_settings_file_stops_a_command_but_not_its_help(cli: Cli) -> None:
    Path("flarechat.toml").write_text("top_p = = 1\n")

    got = cli("run", "Hi")

    assert 2 == got.code
    assert "flarechat.toml is not valid TOML" in got.err
    assert 0 == cli("--help").code == cli("run", "--help").code == cli("--version").code
    assert 0 == cli("sessions", "list").code


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "--top-p", "2", "Hi"), "--top-p 2 is out of range."),
        (("--top-p", "2", "run", "Hi"), "--top-p 2 is out of range."),
        (("--top-p", "2"), "--top-p 2 is out of range."),
        (("run", "--top-k", "many", "Hi"), "--top-k many is not a whole number."),
        (("run", "--temperature", "hot", "Hi"), "--temperature hot is not a number."),
        (("run", "--max-tokens", "0", "Hi"), "--max-tokens 0 is out of range."),
        (("run", "--acceptance", "luck", "Hi"), "--acceptance luck is unknown."),
        (("run", "--stop", "", "Hi"), "--stop was given an empty string."),
        (("run", "--device", "tpu", "Hi"), "--device tpu is unknown."),
        (("run", "--session", "../x", "Hi"), "'../x' is not a session name."),
        (("run", "--wings", "Hi"), "No such option: --wings."),
        (("run", "--top-p"), "Option '--top-p' requires an argument."),
        (("run", "a", "b"), "Got unexpected extra argument"),
        (("fly",), "No such command 'fly'."),
        (("sessions",), "Missing command."),
        (("sessions", "show"), "Missing argument 'NAME'."),
        (("sessions", "show", "none"), "There is no session 'none'."),
        (("--resume", "x", "--continue"), "--resume and --continue exclude each other."),
        ((), "The chat needs a terminal, and input or output is none."),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    cli: Cli, arguments: tuple[str, ...], sentence: str
) -> None:
    got = cli(*arguments)

    first, hint = got.err.replace("closed\n", "").splitlines()
    assert (2, "") == (got.code, got.out)
    assert first.startswith(f"flarechat: {sentence}")
    assert hint.startswith("           ") and hint.strip()


def test_control_characters_of_an_argument_do_not_reach_the_terminal(cli: Cli) -> None:
    got = cli("run", "--\x1b[31mred", "Hi")

    assert 2 == got.code
    assert "\x1b" not in got.err


def test_what_nobody_expected_is_one_sentence_and_a_file(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("a very private detail")

    got = cli("run", "Hi", engine=broken)  # type: ignore[arg-type]

    [report] = paths.logs_dir().glob("crash-*.txt")
    assert (1, "") == (got.code, got.out)
    assert f"flarechat: Something unexpected happened: RuntimeError.\n" in got.err  # noqa: F541
    assert str(report) in got.err
    assert "Traceback" not in got.err
    assert "a very private detail" in report.read_text()
    assert 0o600 == stat.S_IMODE(report.stat().st_mode)


def test_a_crash_that_cannot_be_written_down_is_still_one_sentence(cli: Cli, home: Path) -> None:
    home.mkdir()
    (home / "logs").write_text("in the way")

    def broken() -> None:
        raise RuntimeError("x")

    got = cli("run", "Hi", engine=broken)  # type: ignore[arg-type]

    assert 1 == got.code
    assert "The report could not be written either" in got.err
    assert "Traceback" not in got.err


def test_output_in_a_poor_encoding_is_replaced_not_refused() -> None:
    script = (
        "from tests.cli.scripted import install\nfrom tests.fakes import ScriptedEngine, words\n"
        "from flarechat.__main__ import main\nimport sys\n"
        "install(lambda: ScriptedEngine([words('caf\\u00e9')]))\nsys.exit(main(['run', 'Hi']))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )

    assert (0, b"caf?\n", b"") == (done.returncode, done.stdout, done.stderr)


def test_the_chat_gets_the_settings_and_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = chat_calls(monkeypatch)
    in_a_terminal(monkeypatch)

    codes = [
        main(["--top-k", "3", "--resume", "trip"]),
        main(["--continue"]),
        main(["--session", "new"]),
    ]

    assert [0, 0, 0] == codes
    assert [(3, None, "trip", False), (None, None, None, True), (None, "new", None, False)] == calls


def chat_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Stand in for the TUI; returns the list of what it was called with."""
    import types

    calls: list[tuple[object, ...]] = []

    def run_app(settings: object, *, resume: str | None, continue_last: bool) -> int:
        calls.append(
            (
                getattr(settings, "top_k"),  # noqa: B009
                getattr(settings, "session"),  # noqa: B009
                resume,
                continue_last,
            )
        )
        return 0

    app = types.ModuleType("flarechat.ui.app")
    app.run_app = run_app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flarechat.ui.app", app)
    return calls


def in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)


def test_bench_gets_its_flags(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from flarechat.bench import command

    seen: dict[str, object] = {}

    def run_bench(settings: object, **flags: object) -> int:
        seen.update(flags)
        return 130

    monkeypatch.setattr(command, "run_bench", run_bench)
    got = cli("bench", "--arms", "off", "--repeats", "2", "--json", "x.json", "--ui-tax")

    assert 130 == got.code
    assert {
        "arms": "off",
        "workload": "all",
        "json_path": Path("x.json"),
        "replay": None,
        "repeats": 2,
        "ui_tax": True,
    } == seen
    assert bench.bench.__doc__
