"""What a dtype does to the law of the next token, against the same file decoded to float32.

    python benchmarks/cpu_accuracy.py [--model PATH] [--answer N] [--out CSV]

Every prompt of `flarechat bench` is put into the model's chat template and answered greedily by the
float32 model, N tokens; then every dtype is given the same tokens, and its logits at every row are
compared: the mean and the largest Kullback-Leibler divergence from the float32 law in nats, the
share of rows with the same likeliest token, and the perplexity of the text under each. Rows of the
answer, where the text is the model's own, are told apart from those of the prompt.
"""

from __future__ import annotations

import argparse
import csv
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from flarechat import paths
from flarechat.bench.workloads import load_workloads
from flarechat.engine.boot import language_of
from flarechat.engine.kernels import cpu
from flarechat.engine.plan import LawShape, Plan
from flarechat.engine.recipes import SUPPORTED, recipe_for
from flarechat.engine.slot import Lanes, SlotPool
from flarechat.engine.weights import Checkpoint, load_checkpoint
from flarechat.models import store
from flarechat.protocol import PACKED, STORED, Message, Sampling

CPU = torch.device("cpu")
CONTEXT = 1024
EXACT = "float32"


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens, of which those from `answer` on are the float32 model's own."""

    tokens: list[int]
    answer: int


@dataclass(frozen=True, slots=True)
class Row:
    """One dtype over the rows of one part of the texts."""

    dtype: str
    part: str
    rows: int
    kl_mean: float
    kl_max: float
    argmax: float
    perplexity: float


class Runner:
    """The model in one dtype, which gives the logits of whole texts."""

    def __init__(self, checkpoint: Checkpoint, dtype: str) -> None:
        recipe = recipe_for(checkpoint.architecture)
        self.model = recipe.load(
            checkpoint.config, checkpoint.tensors, slots=1, context=CONTEXT, dtype=dtype,
            device=CPU,
        )  # fmt: skip

    @torch.inference_mode()
    def logits(self, tokens: list[int], pool: SlotPool | None = None) -> Tensor:
        """float32 [N, V] of tokens that follow those the pool has consumed."""
        pool = pool or self.opened()
        plan = Plan(len(tokens) - 1, CONTEXT, LawShape(1))
        found: Tensor = self.model.verify(Lanes(pool, (0,)), torch.tensor([tokens]), plan)[1][0]
        pool.consumed += len(tokens)
        return found

    def opened(self) -> SlotPool:
        """A slot with nothing consumed."""
        pool = SlotPool(1, CONTEXT, self.model.vocabulary, CPU)
        pool.open(0, [0], sampling=Sampling(), seed=0, match=True, budget=1, eos=())
        pool.start(0)
        return pool

    def answered(self, prompt: list[int], count: int) -> Text:
        """The prompt with `count` greedy tokens behind it."""
        pool, tokens = self.opened(), list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens[int(pool.consumed[0]) :], pool)[-1].argmax()))
        return Text(tokens, len(prompt))


def compared(dtype: str, part: str, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Row:
    """One row of the table, from (exact logits, logits, next tokens) of every text."""
    exact, given = (torch.cat([pair[i] for pair in pairs]).double().log_softmax(-1) for i in (0, 1))
    said = torch.cat([pair[2] for pair in pairs])
    divergence = (exact.exp() * (exact - given)).sum(-1)
    same = exact.argmax(-1) == given.argmax(-1)
    likelihood = given.gather(1, said[:, None]).mean()
    return Row(
        dtype, part, len(said), float(divergence.mean()), float(divergence.max()),
        float(same.double().mean()), math.exp(-float(likelihood)),
    )  # fmt: skip


def parts(text: Text, exact: Tensor, given: Tensor) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """The rows that predict tokens of the prompt, and those that predict tokens of the answer."""
    said, first = torch.tensor(text.tokens[1:]), text.answer - 1
    spans = {"prompt": slice(0, first), "answer": slice(first, len(said))}
    return {name: (exact[span], given[span], said[span]) for name, span in spans.items()}


def measure(model: Path, answer: int) -> list[Row]:
    """The table of all dtypes that run here."""
    checkpoint = load_checkpoint(model, paths.cache_dir(), lambda *told: None, supported=SUPPORTED)
    language, plain = language_of(checkpoint), Runner(checkpoint, EXACT)
    prompts = [
        language.encode_chat([Message(role="user", content=load.prompt)], True)
        for load in load_workloads("all")
    ]
    texts = [plain.answered(prompt, answer) for prompt in prompts]
    exact = [plain.logits(text.tokens) for text in texts]
    table = []
    for dtype in (EXACT, PACKED, *([STORED] if cpu.library() else [])):
        runner = Runner(checkpoint, dtype)
        found = [
            parts(text, rows, runner.logits(text.tokens))
            for text, rows in zip(texts, exact, strict=True)
        ]
        table += [compared(dtype, part, [f[part] for f in found]) for part in ("prompt", "answer")]
    return table


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model's name or path; the default model without it")
    parser.add_argument("--answer", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--out", type=Path, help="a CSV file to write")
    asked = parser.parse_args()
    rows = measure(Path(asked.model) if asked.model else store.resolve("smollm2"), asked.answer)
    print(f"{'dtype':16}{'part':8}{'rows':>6}{'KL mean':>10}{'KL max':>9}{'argmax':>8}{'ppl':>9}")
    for row in rows:
        print(
            f"{row.dtype:16}{row.part:8}{row.rows:6}{row.kl_mean:10.5f}{row.kl_max:9.4f}"
            f"{row.argmax:8.4f}{row.perplexity:9.4f}"
        )
    if asked.out:
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
