"""Where flarechat keeps things. Owns the folder names; every other module asks here.

`FLARECHAT_HOME` puts all of it below one folder. Folders are made 0700 on first use.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from flarechat.errors import StorageError

APP = "flarechat"


def _home() -> Path | None:
    home = os.environ.get("FLARECHAT_HOME")
    return Path(home).expanduser() if home else None


def made(path: Path) -> Path:
    """The folder, made if it is not there, as are those above it: all for their owner alone."""
    try:
        # mkdir(parents=True) would give the mode to the last folder only.
        for folder in [*reversed(path.parents), path]:
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError as error:
        raise StorageError(f"{error.filename} is no folder.", "Move it away.") from error
    except OSError as error:
        raise StorageError(
            f"The folder {path} cannot be made: {error.strerror}.",
            "Free space or set FLARECHAT_HOME to a folder you may write to.",
        ) from error
    return path


def config_file() -> Path:
    """The user's settings file; it need not exist."""
    home = _home()
    folder = home / "config" if home else Path(platformdirs.user_config_dir(APP))
    return folder / "config.toml"


def sessions_dir() -> Path:
    """Where conversations are kept."""
    home = _home()
    return made((home / "data" if home else Path(platformdirs.user_data_dir(APP))) / "sessions")


def cache_dir() -> Path:
    """Models and whatever can be made again."""
    home = _home()
    return made(home / "cache" if home else Path(platformdirs.user_cache_dir(APP)))


def models_dir() -> Path:
    """Pulled models."""
    return made(cache_dir() / "models")


def snapshots_dir() -> Path:
    """Snapshots of what models computed: the vault."""
    return made(cache_dir() / "snapshots")


def logs_dir() -> Path:
    """Engine logs and crash reports."""
    home = _home()
    return made(home / "logs" if home else Path(platformdirs.user_log_dir(APP)))


def assets_dir() -> Path:
    """What ships with flarechat: in an installed package inside it, in a clone beside it."""
    package = Path(__file__).parent
    inside = package / "assets"
    return inside if inside.is_dir() else package.parent / "assets"
