"""What a model folder recommends, with and without a generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flarechat.models.folder import recommended
from flarechat.protocol import Sampling

QWEN = Sampling(temperature=1.0, top_k=20, top_p=0.95)


@pytest.mark.parametrize(
    ("family", "given", "expected"),
    [
        ("qwen4_exp", None, QWEN),
        ("qwen4_exp_text", {}, QWEN),
        ("qwen4_exp", {"top_k": 5}, Sampling(temperature=1.0, top_k=5, top_p=0.95)),
        ("llama", None, Sampling()),
        ("llama", {"temperature": 0.6}, Sampling(temperature=0.6)),
    ],
)
def test_a_folder_recommends_what_it_says_over_its_familys_own(
    tmp_path: Path, family: str, given: dict[str, Any] | None, expected: Sampling
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    if given is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(given))

    assert expected == recommended(tmp_path)
