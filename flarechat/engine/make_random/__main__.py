"""The process that writes a random checkpoint: one line says which, Loading lines tell how far.

Run as `python -m flarechat.engine.make_random`; the line on stdin is a JSON object with the fields
of `Wanted` and the folder. A failure is a Failed line and exit status 1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from flarechat.engine.make_random import geometry
from flarechat.errors import EngineError, FlarechatError, StorageError
from flarechat.models import folder as folders
from flarechat.models.files import folder_whole, megabytes
from flarechat.models.sidecars import FORMAT, RECORD_KEY
from flarechat.protocol import ErrorInfo, Event, Failed, Loading, encode

SIDECAR = "qwen38-mtp.safetensors"


def make(wanted: geometry.Wanted, folder: Path, emit: Any) -> None:
    """Write the checkpoint; `folder` appears whole or not at all."""
    from flarechat.engine.make_random.qwen38 import Tensors
    from flarechat.engine.make_random.shards import ShardWriter, write_file

    tensors = Tensors.of(wanted)
    told = done = 0

    def wrote(size: int) -> None:
        nonlocal told, done
        done += size
        if done - told >= 1 << 22:
            told = done
            emit(Loading(stage="writing", done=min(done, tensors.bytes), total=tensors.bytes))

    with folder_whole(folder) as part:
        _require_space(folder, part, tensors.bytes)
        _write_texts(wanted, part)
        groups = tensors.groups()
        writer = ShardWriter(part, len(groups), wrote)
        for group in groups:
            writer.write(group)
        writer.finish()
        if wanted.mtp == "sidecar":
            record = json.dumps(_record(wanted, _fingerprint(part)))
            write_file(part / SIDECAR, tensors.head(), {RECORD_KEY: record}, wrote)
    emit(Loading(stage="writing", done=tensors.bytes, total=tensors.bytes))


def _require_space(folder: Path, part: Path, size: int) -> None:
    free = shutil.disk_usage(part).free
    if size > free:
        needed, spare = megabytes(size), megabytes(free)
        raise StorageError(
            f"The random model needs {needed} in {folder}, and {spare} are free.",
            "Ask for fewer --layers or --geometry tiny, or give a folder on another disk.",
        )


def _write_texts(wanted: geometry.Wanted, folder: Path) -> None:
    from flarechat.engine.make_random.text import TEMPLATE

    words, config = wanted.vocabulary, geometry.config(wanted)
    context = config["text_config"]["max_position_embeddings"]
    (folder / "tokenizer.json").write_text(words.tokenizer_json(), "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    for name, content in (
        ("config.json", config),
        ("generation_config.json", words.generation_config()),
        ("tokenizer_config.json", words.tokenizer_config(context)),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _fingerprint(folder: Path) -> str:
    with tempfile.TemporaryDirectory() as cache:
        return folders.fingerprint(folder, Path(cache), lambda stage, done, total: None)


def _record(wanted: geometry.Wanted, target: str) -> dict[str, Any]:
    """What the head's file says of itself; it starts from the residual behind the last layer."""
    text = geometry.sizes(wanted)
    return {
        "format": FORMAT,
        "targets": [target],
        "hidden_size": text["hidden_size"],
        "layers": 1,
        "intermediate_size": text["moe_intermediate_size"],
        "taps": [wanted.layers],
        "draft_vocabulary": None,
        "licence": "random values, free of any",
    }


def main() -> int:
    """Do what the line on stdin says. Exit 0 when the folder is there, 1 after a Failed line."""
    signal.signal(signal.SIGTERM, _terminate)
    outgoing = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: Event) -> None:
        outgoing.write(encode(event) + "\n")
        outgoing.flush()

    try:
        asked = json.loads(sys.stdin.readline())
        folder = Path(asked.pop("folder"))
        make(geometry.Wanted(**asked), folder, emit)
    except FlarechatError as error:
        emit(Failed(error=ErrorInfo.of(error)))
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        what = f"The random model cannot be made: {type(error).__name__}: {error}"
        emit(Failed(error=ErrorInfo.of(EngineError(what, "Report this."))))
        return 1
    return 0


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
