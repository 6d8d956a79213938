"""The process: runs a command line and turns whatever happens into an exit code.

Owns the last line of defence: no traceback reaches the user, it goes into a file, and closed
output or an interrupt end quietly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import typing
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import flarechat
from flarechat.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    FlarechatError,
    StorageError,
    UsageError,
    print_error,
)
from flarechat.textsafe import strip_controls

EXIT_CLOSED_OUTPUT = 141
_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: ends a command as an interrupt does, so that it cleans up behind it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    _replace_closed_streams()
    # Output in an encoding that lacks a character shows a replacement instead of failing.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        with _terminations():
            code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except FlarechatError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        return interrupt.exit_code if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED
    except BrokenPipeError:
        _abandon_output()
        return EXIT_CLOSED_OUTPUT
    except Exception as error:
        told = _full_output(error) or _crash(error)
        print_error(told)
        return told.exit_code


@contextlib.contextmanager
def _terminations() -> Iterator[None]:
    """Raise Terminated for the signals that would end the process on the spot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in _ENDINGS if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise Terminated(number)


def _replace_closed_streams() -> None:
    """Give a process that was started with closed streams somewhere to read from and write to.

    Otherwise the next file that is opened, a session's for one, would take the stream's number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def _run(arguments: Sequence[str]) -> int:
    """Parse and call. typer's own `main` would turn closed output into exit code 1."""
    import typer
    from typer.main import get_command

    from flarechat.cli import app

    command = get_command(app)
    try:
        with command.make_context("flarechat", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as left:
        return left.exit_code
    except typer.Abort:
        return EXIT_INTERRUPTED
    except Exception as error:
        usage = _usage(error)
        if usage is None:
            raise
        raise usage from None
    return EXIT_OK


def _usage(error: Exception) -> UsageError | None:
    """What typer found wrong with the command line, in our words; None for any other error."""
    import typer

    # typer exports BadParameter, but not the usage error that it is one of.
    if not isinstance(error, typer.BadParameter.__mro__[1]):
        return None
    message = strip_controls(typing.cast(Any, error).format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "flarechat"
    return UsageError(f"{message}.", f"`{command} --help` shows what there is.")


def _full_output(error: Exception) -> StorageError | None:
    """The error of an output that took no more; files of our own never fail without a name."""
    if not isinstance(error, OSError) or error.errno not in _FULL or error.filename is not None:
        return None
    _abandon_output()
    return StorageError(
        f"The output cannot be written: {error.strerror}.",
        "Free space where it goes, or send it somewhere else.",
    )


def _crash(error: Exception) -> FlarechatError:
    """Write the traceback to a file and say where it is."""
    import time
    import traceback

    from flarechat import paths

    what = f"Something unexpected happened: {type(error).__name__}."
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path = paths.logs_dir() / name
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"flarechat {flarechat.__version__}, python {sys.version}\n")
            file.writelines(traceback.format_exception(error))
    except (OSError, FlarechatError):
        return FlarechatError(what, "The report could not be written either; check the disk.")
    return FlarechatError(what, f"The details are in {path}; please report them.")


def _abandon_output() -> None:
    """Let the interpreter's last flush go nowhere: nobody reads the output any more."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
