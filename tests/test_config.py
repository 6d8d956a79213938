"""Settings: five places, one precedence, and refusals that name the place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flarechat import paths
from flarechat.config import Settings, load_settings
from flarechat.config_layers import flag_of
from flarechat.errors import SettingsError
from flarechat.protocol import Sampling, Speculation


def write_user(text: str) -> Path:
    path = paths.config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_folder(folder: Path, text: str) -> Path:
    path = folder / "flarechat.toml"
    path.write_text(text)
    return path


def refusal(flags: dict[str, object], folder: Path, env: dict[str, str]) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, folder=folder, env=env)
    return caught.value


def test_each_place_wins_over_the_ones_behind_it(tmp_path: Path) -> None:
    flags: dict[str, object] = {"top_k": 4}
    env = {"FLARECHAT_TOP_K": "3", "FLARECHAT_SEED": "3"}
    write_folder(tmp_path, "top_k = 2\nseed = 2\nmax_tokens = 2\n")
    write_user("top_k = 1\nseed = 1\nmax_tokens = 1\nlogprobs = 1\n")

    got = load_settings(flags, folder=tmp_path, env=env)

    expected = Settings(top_k=4, seed=3, max_tokens=2, logprobs=1)

    assert expected == got


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    assert Settings() == load_settings({"top_p": None}, folder=tmp_path, env={})


def test_keys_of_a_file_may_be_written_with_dashes(tmp_path: Path) -> None:
    write_folder(tmp_path, "top-p = 0.5\nmtp-draft-tokens = 3\nstop = ['a', 'b']\nmtp = false\n")

    got = load_settings({}, folder=tmp_path, env={})

    assert Settings(top_p=0.5, mtp_draft_tokens=3, stop=("a", "b"), mtp=False) == got


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("FLARECHAT_TEMPERATURE", "0", "temperature", 0.0),
        ("FLARECHAT_CTX", "512", "ctx", 512),
        ("FLARECHAT_HISTORY_DRAFTS", "off", "history_drafts", False),
        ("FLARECHAT_MTP_ADAPTIVE_VERIFICATION", "No", "mtp_adaptive_verification", False),
        ("FLARECHAT_NO_MTP", "1", "mtp", False),
        ("FLARECHAT_MTP_FILE", "heads/one.safetensors", "mtp_file", "heads/one.safetensors"),
        ("FLARECHAT_NO_HISTORY_DRAFTS", "yes", "history_drafts", False),
        ("FLARECHAT_NO_MTP_ADAPTIVE_VERIFICATION", "off", "mtp_adaptive_verification", True),
        ("FLARECHAT_STOP", "###", "stop", ("###",)),
        ("FLARECHAT_STOP", '["a", "b"]', "stop", ("a", "b")),
        ("FLARECHAT_STOP", "[not json", "stop", ("[not json",)),
        ("FLARECHAT_MODEL", "other", "model", "other"),
    ],
)
def test_a_variable_is_parsed_by_its_setting(
    tmp_path: Path, variable: str, text: str, field: str, value: object
) -> None:
    got = load_settings({}, folder=tmp_path, env={variable: text})

    assert value == getattr(got, field)


@pytest.mark.parametrize("name", ["HOME", "TEST_CACHE", "UPDATE"])
def test_a_variable_that_something_else_reads_is_not_a_setting(tmp_path: Path, name: str) -> None:
    assert Settings() == load_settings({}, folder=tmp_path, env={f"FLARECHAT_{name}": "/there"})


def test_no_wins_over_yes_among_the_variables(tmp_path: Path) -> None:
    env = {"FLARECHAT_NO_MTP": "1", "FLARECHAT_MTP": "1"}

    assert not load_settings({}, folder=tmp_path, env=env).mtp


def test_a_file_may_say_no_to_a_switch(tmp_path: Path) -> None:
    write_folder(tmp_path, "no-mtp = true\nno_history_drafts = false\n")

    expected = Settings(mtp=False, history_drafts=True)

    assert expected == load_settings({}, folder=tmp_path, env={})


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("FLARECHAT_TEMPERATUR", "Did you mean FLARECHAT_TEMPERATURE?"),
        ("FLARECHAT_NO_HISTORY_DRAFT", "Did you mean FLARECHAT_NO_HISTORY_DRAFTS?"),
        ("FLARECHAT_NO_MODEL", "Did you mean FLARECHAT_MODEL?"),
        ("FLARECHAT_X9Q", "Remove it; `flarechat --help` lists the settings."),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest(
    tmp_path: Path, variable: str, hint: str
) -> None:
    error = refusal({}, tmp_path, {variable: "1", "OTHER": "1"})

    assert (f"The variable {variable} is not a setting.", hint) == (error.message, error.hint)


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    path = write_folder(tmp_path, "seed = 1\ntemperatur = 1.0\n")

    error = refusal({}, tmp_path, {})

    assert f"{path}, line 2: 'temperatur' is not a setting." == error.message
    assert "Did you mean temperature?" == error.hint


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, "\n[keyz]\nx = 1\n")

    assert "line 2: 'keyz' is not a setting." in refusal({}, tmp_path, {}).message


def test_a_broken_file_is_refused_by_name_and_line(tmp_path: Path) -> None:
    path = write_user("seed = 1\nseed = = 2\n")

    message = refusal({}, tmp_path, {}).message

    assert str(path) in message
    assert "line 2" in message


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    path = write_user("")
    path.write_bytes(b"top_p = \xff\n")
    garbled = refusal({}, tmp_path, {}).message
    path.unlink()
    path.mkdir()
    folder = refusal({}, tmp_path, {}).message

    assert f"The settings file {path} cannot be read: it is not UTF-8 at byte 8." == garbled
    assert f"The settings file {path} cannot be read: Is a directory." == folder


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("top_k = true", "a whole number"),
        ("top_k = 1.5", "a whole number"),
        ("top_p = 'x'", "a number"),
        ("mtp = 1", "true or false"),
        ("model = 3", "a text"),
        ("stop = [1]", "a list of texts"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(tmp_path: Path, text: str, word: str) -> None:
    path = write_folder(tmp_path, text)

    message = refusal({}, tmp_path, {}).message

    assert f"in {path}, line 1 is not {word}." in message


def test_a_variable_that_cannot_be_parsed_is_named(tmp_path: Path) -> None:
    message = refusal({}, tmp_path, {"FLARECHAT_TOP_K": "many"}).message

    assert "top_k = 'many' in FLARECHAT_TOP_K is not a whole number." == message


@pytest.mark.parametrize(
    ("key", "value", "flag"),
    [
        ("top_p", "2", "--top-p 2"),
        ("top_p", "0", "--top-p 0"),
        ("top_p", "nan", "--top-p nan"),
        ("temperature", "-1", "--temperature -1"),
        ("min_p", "1.5", "--min-p 1.5"),
        ("top_k", "-3", "--top-k -3"),
        ("seed", "-1", "--seed -1"),
        ("repetition_penalty", "0", "--repetition-penalty 0"),
        ("presence_penalty", "3", "--presence-penalty 3"),
        ("frequency_penalty", "-3", "--frequency-penalty -3"),
        ("max_tokens", "0", "--max-tokens 0"),
        ("logprobs", "21", "--logprobs 21"),
        ("mtp_draft_tokens", "8", "--mtp-draft-tokens 8"),
        ("acceptance", "luck", "--acceptance luck"),
        ("ctx", "0", "--ctx 0"),
        ("concurrency", "0", "--concurrency 0"),
        ("concurrency", "5", "--concurrency 5"),
        ("threads", "0", "--threads 0"),
        ("device", "tpu", "--device tpu"),
        ("dtype", "int8", "--dtype int8"),
        ("model", " ", "--model is empty"),
        ("mtp_file", " ", "--mtp-file is empty"),
        ("mtp_file", "a\0b", "--mtp-file is empty or no path"),
        ("stop", "", "--stop was given an empty"),
        ("top_k", "9" * 20, "--top-k 99999999999999999999 does not fit 64 bits"),
        ("top_k", "9" * 400, "--top-k of that many digits does not fit 64 bits"),
        ("temperature", "1e400", "--temperature inf"),
    ],
)
def test_a_value_out_of_range_names_its_flag_and_where_it_is_set(
    tmp_path: Path, key: str, value: str, flag: str
) -> None:
    by_flag = refusal({key: value}, tmp_path, {})
    by_variable = refusal({}, tmp_path, {f"FLARECHAT_{key.upper()}": value})

    assert by_flag.message.startswith(flag)
    assert by_flag.hint
    assert by_variable.message == by_flag.message
    assert "is set in" not in by_flag.hint


def test_every_dtype_that_the_engine_knows_can_be_set() -> None:
    from flarechat.engine.dtypes import DTYPES

    assert DTYPES == tuple(Settings(dtype=dtype).dtype for dtype in DTYPES)


def test_a_value_out_of_range_in_a_file_says_which_file(tmp_path: Path) -> None:
    path = write_folder(tmp_path, "\ntop_p = 2\n")

    error = refusal({}, tmp_path, {})

    assert "--top-p 2 is out of range." == error.message
    assert error.hint.endswith(f"It is set in {path}, line 2.")


def test_sampling_fills_what_is_not_set_from_the_recommendation() -> None:
    recommended = Sampling(temperature=0.2, top_k=50, repetition_penalty=1.1)

    got = Settings(top_k=0, seed=7).sampling(recommended)

    assert Sampling(temperature=0.2, top_k=0, repetition_penalty=1.1, seed=7) == got


def test_speculation_follows_the_switches() -> None:
    settings = Settings(
        mtp=False, mtp_draft_tokens=2, mtp_adaptive_verification=False, history_drafts=False
    )

    expected = Speculation(draft_tokens=2, adaptive=False, history_drafts=False, mtp=False)

    assert expected == settings.speculation()


def test_every_setting_has_a_flag_or_is_kept_to_the_files() -> None:
    from flarechat.cli.options import _OPTIONS

    flags = {"--" + option.name.replace("_", "-") for option in _OPTIONS}
    settings = {flag_of(field.name) for field in dataclasses.fields(Settings)}

    assert {"--theme"} == settings - flags
    assert set() == flags - settings
