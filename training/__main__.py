"""The commands: generate, train, evaluate, export, dry-run."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from flarechat.errors import FlarechatError
from training import dry, evaluation_file
from training import rounds as real
from training.conversations import Conversations, Voices, converse
from training.evaluate import evaluate as measure
from training.evaluate import table
from training.export import export as write_sidecar
from training.head import HeadShape
from training.losses import Law
from training.model import Loaded, load
from training.shards import read_shards, shard_path, write_shard
from training.train import TrainSettings, Workers, log_rows, trained
from training.train import train as run_training

app = typer.Typer(
    add_completion=False, help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False
)

ModelOption = Annotated[Path, typer.Option("--model", help="GGUF or folder of the target.")]
FolderOption = Annotated[Path, typer.Option("--data", help="Folder of conversations.")]
RunOption = Annotated[Path, typer.Option("--head", help="Folder of the head in training.")]
LAWS = (Law(0, 1, 1.0), Law(0.7, 20, 0.95))
OPENERS = Path(__file__).with_name("openers.txt")


@app.command()
def generate(
    model: ModelOption,
    data: FolderOption,
    shards: Annotated[int, typer.Option(help="How many files.")] = 16,
    batch: Annotated[int, typer.Option(help="Conversations in a file.")] = 2048,
    length: Annotated[int, typer.Option(help="Tokens of a conversation.")] = 512,
    seed: Annotated[int, typer.Option(help="Shard n is drawn from seed + n.")] = 1000,
    openers: Annotated[Path, typer.Option(help="First words of every second talk.")] = OPENERS,
    worker: Annotated[int, typer.Option(help="This worker's number.")] = 0,
    workers: Annotated[int, typer.Option(help="Workers that share the shards.")] = 1,
    seconds: Annotated[float, typer.Option(help="Begin no shard after this long.")] = 1e9,
) -> None:
    """Let the target write conversations; shards that are there are left alone."""
    began = time.perf_counter()
    loaded = load(model, rows=length)
    begun = [loaded.tokenizer.encode(line) for line in openers.read_text().splitlines() if line]
    data.mkdir(parents=True, exist_ok=True)
    for number in range(worker, shards, workers):
        path = shard_path(data, number)
        if path.exists() or time.perf_counter() - began > seconds:
            continue
        talk = converse(
            loaded.target, loaded.frame, Voices(), batch=batch, length=length,
            seed=seed + number, openers=begun,
        )  # fmt: skip
        record = {"model": loaded.fingerprint, "seed": seed + number, "voices": asdict(Voices())}
        write_shard(path, talk, record)
        share = (talk.roles == 2).float().mean()
        spent = time.perf_counter() - began
        print(f"{path.name}: {talk.tokens.numel()} tokens, {share:.0%} assistant, {spent:.0f} s")


@app.command()
def train(
    model: ModelOption,
    data: FolderOption,
    run: RunOption,
    tokens: Annotated[
        int, typer.Option(help="Tokens of text to see, repeats included.")
    ] = 30_000_000,
    batch: Annotated[int, typer.Option(help="Texts in a step, for each worker.")] = 64,
    steps: Annotated[int, typer.Option(help="Depth of the chains.")] = 7,
    vocabulary: Annotated[int, typer.Option(help="Draft vocabulary; 0 is the whole.")] = 8192,
    loss: Annotated[
        str, typer.Option(help="soft, hard, overlap or a sum (soft+overlap).")
    ] = "soft",
    layers: Annotated[int, typer.Option(help="Layers of the head.")] = 1,
    inner: Annotated[int, typer.Option(help="Rows of the head's MLP; 0 is the target's.")] = 0,
    taps: Annotated[str, typer.Option(help="Blocks passed before each row fed in: 10,20,30.")] = "",
    heat: Annotated[float, typer.Option(help="Temperature of the soft loss.")] = 1.0,
    rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    decay: Annotated[float, typer.Option(help="Weight of a depth against the one before.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Of the start and the order of the data.")] = 1,
) -> None:
    """Train a head, or go on where the run stopped."""
    talk = read_shards(data)
    loaded = load(model, rows=talk.tokens.shape[1])
    shape = loaded.target.shape
    places = tuple(int(t) for t in taps.split(",")) if taps else (shape.num_hidden_layers,)
    settings = TrainSettings(
        head=HeadShape(layers, inner or shape.intermediate_size, places),
        tokens=tokens, batch=batch, steps=steps, vocabulary=vocabulary, loss=loss, soft_heat=heat,
        rate=rate, depth_decay=decay, seed=seed,
    )  # fmt: skip
    began = time.perf_counter()
    run_training(loaded.target, talk, settings, run)
    if Workers.join().rank == 0:
        print(f"trained in {time.perf_counter() - began:.0f} s: {run}")


@app.command()
def evaluate(
    model: ModelOption,
    data: FolderOption,
    run: RunOption,
    depth: Annotated[int, typer.Option(help="Deepest draft measured.")] = 7,
    texts: Annotated[int, typer.Option(help="Conversations to use at most.")] = 512,
) -> None:
    """Measure a trained head on held-out conversations; writes acceptance.json into the run."""
    talk = read_shards(data)
    talk = Conversations(talk.tokens[:texts], talk.roles[:texts], talk.voice[:texts])
    loaded = load(model, rows=talk.tokens.shape[1])
    head, _, ids, _ = trained(run / "state.safetensors", loaded.target)
    found = measure(loaded.target, head, ids, talk, depth=depth)
    evaluation_file.write(run, found, talk)
    print(f"{run}\n{table(found)}", flush=True)


@app.command()
def rounds(
    model: ModelOption,
    data: FolderOption,
    sidecar: Annotated[Path, typer.Option(help="The exported head.")],
    prompts: Annotated[int, typer.Option(help="Held-out prompts to answer.")] = 24,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 128,
) -> None:
    """Play held-out prompts on flarechat's engine: drafts kept in real rounds."""
    engine = real.open_engine(model, sidecar)
    turns = real.first_turns(
        read_shards(data), engine.language.tokenizer, engine.language.eos, prompts
    )
    found = []
    for law, rule in ((LAWS[0], "match"), (LAWS[1], "ratio"), (LAWS[1], "match")):
        for k in (3, 7):
            found.append(real.play(engine, turns, law, rule, k, max_tokens))
            print(found[-1], flush=True)
    print(real.table(found))


@app.command()
def export(
    model: ModelOption,
    run: RunOption,
    out: Annotated[Path, typer.Option(help="The sidecar to write.")],
    licence: Annotated[str, typer.Option(help="Licence of the head.")] = "Apache-2.0",
) -> None:
    """Write the sidecar of an evaluated run."""
    loaded = load(model, rows=8)
    size = write_run(loaded, run, out, licence)
    print(f"{out}: {size} bytes")


def write_run(loaded: Loaded, run: Path, out: Path, licence: str) -> int:
    """Export a run with what is known of it; returns the size in bytes."""
    head, settings, ids, step = trained(run / "state.safetensors", loaded.target)
    last = list(log_rows(run))[-1]
    facts = {
        "licence": licence,
        "tokens": int(last[1]),
        "steps": step,
        "seed": settings.seed,
        "losses": [float(x) for x in last[3:]],
        "settings": {k: v for k, v in asdict(settings).items() if k != "head"},
        "acceptance": evaluation_file.read(run),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
    shape = loaded.target.shape
    return write_sidecar(head, shape, ids, loaded.fingerprint, out, facts)


@app.command("dry-run")
def dry_run(folder: Annotated[Path, typer.Argument(help="Where to write.")]) -> None:
    """All four steps on a random tiny target on the CPU, in seconds."""
    dry.play(folder, write_run)


def main() -> None:
    """Run a command; what is wrong with its input is one sentence."""
    try:
        app()
    except (FlarechatError, OSError, ValueError) as error:
        sys.exit(f"training: {error}")


if __name__ == "__main__":
    main()
