"""From settings to an engine: finds or pulls the model and says how the engine is to boot.

Owns that one path for the TUI, `run` and `bench` alike. Imports the model store and the engine's
host only when called, and never torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from flarechat import paths
from flarechat.config import Settings
from flarechat.errors import SettingsError
from flarechat.protocol import Boot, EngineDoor

Progress = Callable[[str, int, int], None]


def boot_of(settings: Settings, progress: Progress) -> Boot:
    """How the engine is to start. A model that is not here yet is pulled; `progress` hears of it
    as (stage, done, total), in bytes.
    """
    from flarechat.models import store

    def pulled(done: int, total: int) -> None:
        progress("download", done, total)

    return Boot(
        model=str(store.resolve(settings.model, progress=pulled)),
        cache=str(paths.cache_dir()),
        context=settings.ctx,
        lanes=settings.concurrency,
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        mtp=settings.mtp,
        mtp_file=mtp_file(settings),
        executor=settings.executor,
        speculative_token_capacity=settings.speculative_token_capacity,
        prefix_cache=settings.prefix_cache,
        prefix_cache_disk=settings.prefix_cache_disk,
    )


def mtp_file(settings: Settings) -> str | None:
    """The head asked for, as a full path; one that is not there is refused at once."""
    if settings.mtp_file is None or not settings.mtp:
        return None
    path = os.path.abspath(os.path.expanduser(settings.mtp_file))
    if not os.path.exists(path):
        raise SettingsError(
            f"--mtp-file {settings.mtp_file} does not exist.",
            "Check the path, or leave it out: a head that ships with flarechat needs none.",
        )
    return path


def engine_of(settings: Settings, progress: Progress) -> EngineDoor:
    """An engine that was not started yet."""
    from flarechat.engine.host import EngineHost

    return EngineHost(boot_of(settings, progress))


def open_engine(settings: Settings, progress: Progress) -> EngineDoor:
    """An engine that is loading; its events tell how that goes."""
    engine = engine_of(settings, progress)
    engine.start()
    return engine
