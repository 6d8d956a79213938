"""`flarechat sessions verify` and what `sessions rm` takes along."""

from __future__ import annotations

import json
import os

from flarechat import paths
from flarechat.errors import SessionError
from flarechat.sessions import store
from flarechat.sessions.session import SessionWriter
from tests.cli.conftest import Cli
from tests.sessions.naming import naming, put
from tests.sessions.saving import saved
from tests.vault.nodes import made


def test_where_all_is_sound_one_line_says_so(cli: Cli) -> None:
    saved("trip", "Hi")
    put(end := made([1]))
    naming("work", end)

    got = cli("sessions", "verify")
    assert (0, "2 sessions, 1 snapshot: all sound.\n", "") == (got.code, got.out, got.err)
    got = cli("sessions", "verify", "trip")
    assert (0, "1 session, 0 snapshots: all sound.\n") == (got.code, got.out)

    writer, _ = SessionWriter.open(store.find("trip"))
    got = cli("sessions", "verify", "--repair")
    writer.close()
    assert (0, "2 sessions, 1 snapshot, 1 open now: all sound.\n") == (got.code, got.out)


def test_every_finding_is_a_line_and_repair_mends_what_is_no_session(cli: Cli) -> None:
    path = saved("trip", "Hi")
    path.write_bytes(path.read_bytes() + b'{"type":"\x1b[1m"}\n')
    [file] = put(made([1]))
    file.write_bytes(b"junk")
    alien = "trip, line 3: it is no JSON object\n"

    got = cli("sessions", "verify")
    lines = f"{alien}{file}: its file is cut off\n"
    assert (1, f"{lines}1 session, 1 snapshot: 2 problems.\n") == (got.code, got.out)
    assert (file.exists(), "") == (True, got.err)

    got = cli("sessions", "verify", "--repair")
    lines = f"{alien}{file}: its file is cut off (mended)\n"
    assert (1, f"{lines}1 session, 1 snapshot: 2 problems, 1 of them mended.\n") == (
        got.code,
        got.out,
    )
    assert not file.exists()

    got = cli("sessions", "verify", "--repair")
    assert (1, f"{alien}1 session, 0 snapshots: 1 problem.\n") == (got.code, got.out)


def test_json_is_one_object(cli: Cli) -> None:
    path = saved("trip", "Hi")
    [file] = put(made([1]))
    file.write_bytes(b"junk")
    (path.parent / "bad.jsonl").write_text("junk\n")
    writer, session = SessionWriter.open(path)

    got = cli("sessions", "verify", "--repair", "--json")
    writer.close()

    said = json.loads(got.out)
    assert (1, {"sound", "sessions", "snapshots", "problems"}) == (got.code, set(said))
    assert (False, 1) == (said["sound"], said["snapshots"])
    bad, trip = said["sessions"]
    assert {
        "name": "trip",
        "path": str(path),
        "id": session.id,
        "turns": 1,
        "open_in": f"process {os.getpid()}",
        "faults": [],
    } == trip
    assert ("bad", "", 0, [None]) == (
        bad["name"],
        bad["id"],
        bad["turns"],
        [fault["line"] for fault in bad["faults"]],
    )
    (problem,) = said["problems"]
    assert {
        "path": str(file), "what": "its file is cut off", "mended": True, "harmless": False,
    } == problem  # fmt: skip


def test_a_session_that_is_not_there_is_refused(cli: Cli) -> None:
    got = cli("sessions", "verify", "none")

    assert (SessionError.exit_code, "") == (got.code, got.out)
    assert "There is no session 'none'." in got.err


def test_rm_takes_along_what_was_computed_for_the_session_alone(cli: Cli) -> None:
    trunk = made([1, 2])
    put(trunk, trip := made([3], trunk), work := made([4], trunk))
    naming("trip", trip)
    naming("work", work)

    got = cli("sessions", "rm", "trip", "--yes")
    assert (0, "trip was deleted, with 1 snapshot.\n") == (got.code, got.err)
    got = cli("sessions", "rm", "work", "--yes")
    assert "work was deleted, with 2 snapshots.\n" == got.err
    assert [] == os.listdir(paths.snapshots_dir())
    put(trunk, end := made([3], trunk, offset=1))
    naming("trip", trunk)
    naming("work", end)
    got = cli("sessions", "rm", "trip", "--yes")
    stays = (
        "A snapshot stays, with words that no chat has any more, as others need what it begins "
        "with; `flarechat cache clear` deletes all.\n"
    )
    assert "trip was deleted.\n" + stays == got.err
    saved("bare", "Hi")
    assert "bare was deleted.\n" + stays == cli("sessions", "rm", "bare", "--yes").err
    cli("sessions", "rm", "work", "--yes")
    saved("bare", "Hi")
    assert "bare was deleted.\n" == cli("sessions", "rm", "bare", "--yes").err
