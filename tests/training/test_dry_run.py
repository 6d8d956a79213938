"""The four commands over a tiny target: seeded, resumable, and the file says what was done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from training import dry
from training.__main__ import write_run
from training.conversations import ASSISTANT, TEMPLATE, USER, Voices, converse
from training.shards import read_shards
from training.train import train, trained


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_dry_run_writes_a_whole_sidecar(tmp_path: Path):
    sidecar = dry.play(tmp_path, write_run)
    with safe_open(sidecar, framework="pt") as file:
        record = json.loads(file.metadata()["flarechat.mtp"])
        names = set(file.keys())
        assert file.get_tensor("mtp.fc.weight").dtype == torch.bfloat16
    assert record["format"] == 1 and record["layers"] == 1 and record["taps"] == [3]
    assert record["draft_vocabulary"] == sorted(set(record["draft_vocabulary"]))
    assert len(record["draft_vocabulary"]) == 64
    assert record["tokens"] == 48 * 8 * 40 and record["licence"] == "Apache-2.0"
    assert {law["law"] for law in record["acceptance"]["laws"]} == {
        "0", "0.2/50/0.9", "0.7/20/0.95", "1.0/20/0.95",
    }  # fmt: skip
    assert "mtp.layers.0.self_attn.q_proj.weight" in names and len(names) == 13


def test_a_run_that_was_cut_ends_as_one_that_was_not(tmp_path: Path):
    target = dry.tiny_target()
    talk = converse(target, dry.FRAME, Voices(), batch=20, length=dry.LENGTH, seed=0)
    whole = replace(dry.SETTINGS, tokens=dry.LENGTH * 8 * 12, save_every=6)
    train(target, talk, whole, tmp_path / "whole")

    class Cut(Exception):
        pass

    def stop_at(step: int):
        def look(*args, **kwargs):
            if calls.append(0) or len(calls) > step:
                raise Cut
            return loss_of(*args, **kwargs)

        calls: list[int] = []
        return look

    from training import train as module

    loss_of = module.loss_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "loss_of", stop_at(8))
        with pytest.raises(Cut):
            train(target, talk, whole, tmp_path / "cut")
    assert trained(tmp_path / "cut" / "state.safetensors", target)[3] == 6
    train(target, talk, whole, tmp_path / "cut")
    ends = [trained(tmp_path / name / "state.safetensors", target)[0] for name in ("whole", "cut")]
    for a, b in zip(*(head.parameters() for head in ends), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def test_training_lowers_the_loss(tmp_path: Path):
    target = dry.tiny_target()
    talk = converse(target, dry.FRAME, Voices(), batch=40, length=dry.LENGTH, seed=0)
    for loss in ("soft", "hard", "soft+overlap"):
        settings = replace(dry.SETTINGS, loss=loss, tokens=dry.LENGTH * 8 * 60)
        train(target, talk, settings, tmp_path / loss)
        rows = (tmp_path / loss / "log.csv").read_text().splitlines()
        first, last = float(rows[0].split(",")[3]), float(rows[-1].split(",")[3])
        assert last < 0.9 * first, (loss, first, last)


def test_conversations_follow_the_template_and_their_seed():
    target = dry.tiny_target()
    talk = converse(target, dry.FRAME, Voices(user_tokens=6), batch=10, length=48, seed=3)
    again = converse(target, dry.FRAME, Voices(user_tokens=6), batch=10, length=48, seed=3)
    other = converse(target, dry.FRAME, Voices(user_tokens=6), batch=10, length=48, seed=4)
    assert torch.equal(talk.tokens, again.tokens) and not torch.equal(talk.tokens, other.tokens)
    for tokens, roles in zip(talk.tokens.tolist(), talk.roles.tolist(), strict=True):
        assert tuple(tokens[:3]) == dry.FRAME.opening
        speaker, at = USER, 3
        while at < 48:
            run = 0
            while at < 48 and roles[at] == speaker:
                if tokens[at] in dry.FRAME.ends:
                    at += 1
                    break
                at, run = at + 1, run + 1
            if speaker == USER and run == 6 and at < 48:
                assert tokens[at] == dry.FRAME.ends[0] and roles[at] == TEMPLATE
                at += 1
            forced = dry.FRAME.to_assistant if speaker == USER else dry.FRAME.to_user
            for token in forced[: 48 - at]:
                assert (tokens[at], roles[at]) == (token, TEMPLATE)
                at += 1
            speaker = ASSISTANT if speaker == USER else USER


def test_greedy_rows_say_what_greedy_decoding_says():
    target = dry.tiny_target()
    talk = converse(target, dry.FRAME, Voices(), batch=5, length=40, seed=1)
    row = talk.tokens[0].long()
    logits = target.logits(target.hidden(row[None], (3,)))[0]
    said = (talk.roles[0, 1:] == ASSISTANT).nonzero()[:, 0]
    assert len(said) and torch.equal(logits[said].argmax(-1), row[said + 1])


def test_shards_are_read_in_order(tmp_path: Path):
    dry.play(tmp_path, write_run)
    assert len(read_shards(tmp_path / "data").tokens) == 40


def test_wrong_input_is_one_sentence(tmp_path: Path):
    import subprocess
    import sys

    command = [sys.executable, "-m", "training", "train", "--model", str(tmp_path / "no.gguf")]
    command += ["--data", str(tmp_path), "--head", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip() == (
        f"training: {tmp_path} has no conversations; run `training generate` first"
    )
