"""What the user may set, and which of five places wins.

Owns `Settings` and its precedence: flags, FLARECHAT_* variables, flarechat.toml of the folder,
the user's settings file, defaults. Knows no engine: a value left unset stays None here, and the
model's own recommendation fills it once the model is known.
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flarechat import paths
from flarechat.config_layers import Layer, flag_of, of_environment, of_file, of_flags, typed
from flarechat.errors import SettingsError
from flarechat.protocol import (
    DTYPES,
    EXECUTORS,
    MAX_LANES,
    SPECULATIVE_TOKENS,
    Request,
    Sampling,
    Speculation,
)

FOLDER_FILE = "flarechat.toml"
# What an answer is held to: of these one place sets one, in place of what places behind it set.
_CONSTRAINTS = ("json_schema", "regex", "grammar", "json_answer")
_FORMS = (*_CONSTRAINTS, "tools", "tool_choice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, checked. None means not set: the model's recommendation applies."""

    model: str = "smollm2"
    device: str = "auto"
    dtype: str = "auto"
    ctx: int | None = None
    concurrency: int = 1
    threads: int | None = None
    executor: str = "auto"
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    system: str | None = None
    thinking: bool = True
    logprobs: int = 0
    mtp: bool = True
    mtp_file: str | None = None
    mtp_draft_tokens: int = 7
    mtp_adaptive_verification: bool = True
    speculative_token_capacity: int = SPECULATIVE_TOKENS
    prefix_cache: int | None = None
    prefix_cache_disk: int = 2048
    history_drafts: bool = True
    acceptance: str = "auto"
    tools: tuple[str, ...] = ()
    tool_choice: str = "auto"
    tool_rounds: int = 8
    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None
    json_answer: bool = False
    session: str | None = None
    theme: str = "auto"

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise SettingsError("--model is empty.", "Give a model's name or a path.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise SettingsError(
                f"--device {self.device} is unknown.", "Use auto, cpu, cuda or cuda:N."
            )
        if self.dtype not in DTYPES:
            raise SettingsError(f"--dtype {self.dtype} is unknown.", f"Use {', '.join(DTYPES)}.")
        _within("ctx", self.ctx, 1, 2**31 - 1)
        _within("concurrency", self.concurrency, 1, MAX_LANES)
        _within("threads", self.threads, 1, 4096)
        if self.executor not in EXECUTORS:
            raise SettingsError(
                f"--executor {self.executor} is unknown.", f"Use {', '.join(EXECUTORS)}."
            )
        _within("speculative-token-capacity", self.speculative_token_capacity, 1, 2**31 - 1)
        _within("prefix-cache", self.prefix_cache, 0, 2**31 - 1)
        _within("prefix-cache-disk", self.prefix_cache_disk, 0, 2**31 - 1)
        if self.mtp_file is not None and (not self.mtp_file.strip() or "\0" in self.mtp_file):
            raise SettingsError("--mtp-file is empty or no path.", "Give a file, or leave it out.")
        if any(not source.strip() or "\0" in source for source in self.tools):
            raise SettingsError("--tools is empty or no path.", "Give a file, or leave it out.")
        _within("tool-rounds", self.tool_rounds, 1, 64)
        self._check_form()
        self.sampling(Sampling())
        self.speculation()
        Request(
            id="", messages=(), max_tokens=self.max_tokens, stop=self.stop, logprobs=self.logprobs
        )

    def _check_form(self) -> None:
        """Refuse two things that an answer cannot both be held to, and one that is empty."""
        held = self.constraints
        for key in held:
            text = getattr(self, key)
            named = text is not True and key != "regex"
            if not text or (named and (not text.strip() or "\0" in text)):
                what = "empty" if key == "regex" else "empty or no path"
                raise SettingsError(f"{flag_of(key)} is {what}.", "Leave it out.")
        calling = bool(self.tools) and self.tool_choice != "none"
        if len(held) + calling > 1:
            one, other = [*held, "tools"][:2]
            raise SettingsError(
                f"{flag_of(one)} and {flag_of(other)} exclude each other.", "Give one of them."
            )

    @property
    def constraints(self) -> list[str]:
        """The settings, one at most, that say what answers are to satisfy."""
        return [key for key in _CONSTRAINTS if getattr(self, key) not in (None, False)]

    @property
    def vault_bytes(self) -> int:
        """What snapshots may take on disk: nothing where none are kept in memory."""
        return 0 if self.prefix_cache == 0 else self.prefix_cache_disk << 20

    def sampling(self, recommended: Sampling) -> Sampling:
        """The law of an answer: what was set here over what the model recommends."""
        names = (field.name for field in dataclasses.fields(Sampling))
        chosen = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return dataclasses.replace(recommended, **chosen)

    def speculation(self) -> Speculation:
        """How a request may draft."""
        return Speculation(
            draft_tokens=self.mtp_draft_tokens,
            adaptive=self.mtp_adaptive_verification,
            history_drafts=self.history_drafts,
            mtp=self.mtp,
            acceptance=self.acceptance,
        )


def load_settings(
    flags: Mapping[str, object],
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Settings:
    """The settings in force. `flags` uses the field names; None there means absent, and a
    number may still be text.
    """
    kinds = _kinds()
    layers = (
        of_file(paths.config_file(), kinds),
        of_file((folder or Path.cwd()) / FOLDER_FILE, kinds),
        of_environment(os.environ if env is None else env, kinds),
        of_flags(flags, kinds),
    )
    chosen: Layer = {}
    for layer in layers:
        if any(layer[key][0] is not False for key in (*_CONSTRAINTS, "tools") if key in layer):
            chosen = {key: value for key, value in chosen.items() if key not in _FORMS}
        chosen.update(layer)
    values = {key: typed(key, value, kinds[key], origin) for key, (value, origin) in chosen.items()}
    try:
        return Settings(**values)
    except SettingsError as error:
        raise _with_origin(error, {key: origin for key, (_, origin) in chosen.items()}) from None


def _within(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise SettingsError(f"--{name} {value} is out of range.", f"Give {low} to {high}.")


def _with_origin(error: SettingsError, origins: Mapping[str, str]) -> SettingsError:
    """The same error, saying where the value was set when that was not a flag."""
    flag = error.message.split(maxsplit=1)[0]
    origin = next((origins[key] for key in origins if flag_of(key) == flag), "")
    return SettingsError(error.message, f"{error.hint} It is set in {origin}.") if origin else error


def _kinds() -> dict[str, type]:
    """The plain type of every setting: str, int, float, bool or tuple (of str)."""
    hints = typing.get_type_hints(Settings)
    plain = {key: typing.get_args(hint) or (hint,) for key, hint in hints.items()}
    return {key: tuple if args[-1] is Ellipsis else args[0] for key, args in plain.items()}
