"""`flarechat sessions export` and `import` of bundles with state."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from flarechat.sessions import store
from tests.cli.conftest import Cli
from tests.sessions.nodes import files, kept, put, said

TRUNK = kept(None, 0, range(10, 20))
ANSWER = kept(TRUNK, 10, range(20, 26))
NODES = {TRUNK.digest: TRUNK.data, ANSWER.digest: ANSWER.data}


@pytest.fixture
def moved(cli: Cli) -> Cli:
    """trip.flarechat in the folder, with state; the session and the vault are gone."""
    vault, path = put(TRUNK, ANSWER), said("trip", (ANSWER, 16))
    got = cli("sessions", "export", "trip", "--format", "bundle", "--with-state")
    assert (0, "", "") == (got.code, got.out, got.err)
    store.remove(path)
    vault.clear()
    return cli


def test_state_goes_out_and_comes_in_where_it_is_asked_for(moved: Cli) -> None:
    got = moved("sessions", "import", "--with-state", "trip.flarechat")

    assert (0, "trip\n", "") == (got.code, got.out, got.err)
    assert NODES == files()


def test_state_that_was_not_asked_for_is_left_out_with_a_notice(moved: Cli) -> None:
    got = moved("sessions", "import", "trip.flarechat")

    assert (0, "trip\n", {}) == (got.code, got.out, files())
    assert "trip.flarechat: left out its state, 2 snapshots" in got.err


@pytest.mark.parametrize("limits", [("prefix_cache_disk", "0"), ("prefix_cache", "0")])
def test_state_is_left_out_where_none_is_kept_on_disk(
    moved: Cli, limits: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, value = limits
    monkeypatch.setenv(f"FLARECHAT_{name.upper()}", value)

    got = moved("sessions", "import", "--with-state", "trip.flarechat")

    assert (0, "trip\n", {}) == (got.code, got.out, files())
    assert "left out its state, as nothing is kept on disk here." in got.err


def test_flags_before_the_command_say_how_much_the_vault_may_have(moved: Cli) -> None:
    got = moved("--prefix-cache-disk", "0", "sessions", "import", "--with-state", "trip.flarechat")

    assert (0, "trip\n", {}) == (got.code, got.out, files())


def test_a_bundle_has_no_state_unless_it_is_asked_for(cli: Cli) -> None:
    put(TRUNK, ANSWER)
    said("trip", (ANSWER, 16))

    got = cli("sessions", "export", "trip", "--format", "bundle")

    assert (0, "", "") == (got.code, got.out, got.err)
    with zipfile.ZipFile("trip.flarechat") as found:
        assert ["manifest.json", "session.jsonl"] == found.namelist()


def test_state_that_is_not_there_is_a_notice(cli: Cli) -> None:
    said("trip", (ANSWER, 16))

    got = cli("sessions", "export", "trip", "--format", "bundle", "--with-state")

    assert 0 == got.code
    assert "left out a snapshot: it is not kept any more" in got.err
    assert Path("trip.flarechat").exists()


def test_another_format_has_no_state(cli: Cli) -> None:
    said("trip", (ANSWER, 16))

    got = cli("sessions", "export", "trip", "--with-state")

    assert 2 == got.code
    assert "A markdown has no state. " in " ".join(got.err.split()) + " "
