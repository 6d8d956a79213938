"""Teach a head: chains from every row, judged on assistant tokens, AdamW with a cosine.

Resumable to the step (weights, optimiser and the order of the data are functions of the seed and
the step) and data-parallel under torchrun. Checkpoints are safetensors.
"""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from training import losses
from training.conversations import ASSISTANT, Conversations
from training.head import DraftHead, HeadShape, start_from
from training.target import Target, norm


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """One training run. `vocabulary` 0 means the whole; `loss` is soft, hard, overlap or a sum.

    `tokens` counts tokens of text seen, repeats included, over all workers; the heats are the
    temperatures at which the soft loss and the overlap are taken.
    """

    head: HeadShape = field(default_factory=HeadShape)
    tokens: int = 30_000_000
    batch: int = 64
    steps: int = 7
    vocabulary: int = 8192
    loss: str = "soft"
    soft_heat: float = 1.0
    overlap_heat: float = 0.7
    depth_decay: float = 0.9
    rate: float = 1e-3
    warmup: int = 100
    weight_decay: float = 0.01
    seed: int = 1
    save_every: int = 500


@dataclass(slots=True)
class Workers:
    """The data-parallel workers of a run; one when it was not started by torchrun."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls) -> Workers:
        """From torchrun's environment."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        return cls(int(os.environ.get("RANK", "0")), count)

    def average(self, parameters: list[torch.nn.Parameter]) -> None:
        """Mean of the gradients over the workers, in place."""
        if self.count == 1:
            return
        flat = torch.cat([p.grad.reshape(-1) for p in parameters])
        dist.all_reduce(flat)
        flat /= self.count
        for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad.copy_(part.view_as(p))


def draft_vocabulary(talk: Conversations, size: int, rows: int) -> list[int] | None:
    """The `size` tokens the assistant says most, in increasing order; None for all of `rows`."""
    if not size or size >= rows:
        return None
    said = talk.tokens[talk.roles == ASSISTANT]
    counts = torch.bincount(said.long(), minlength=rows)
    order = torch.argsort(counts, descending=True, stable=True)
    return sorted(order[:size].tolist())


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows whose next token the assistant chose. `where` int64 [M] are flat places in [B, T]."""

    ids: Tensor
    hidden: Tensor
    where: Tensor


class Lesson:
    """The frozen half of a step: what the target saw and said for a batch of texts."""

    def __init__(self, target: Target, shape: HeadShape, steps: int, ids: list[int] | None) -> None:
        self.target, self.steps = target, steps
        last = target.shape.num_hidden_layers
        self.taps = (*shape.taps, *(() if last in shape.taps else (last,)))
        self.width = target.shape.hidden_size * len(shape.taps)
        device = target.device
        self.rows = None if ids is None else torch.tensor(ids, device=device)
        self.head = target.head if self.rows is None else target.head[self.rows]
        self.place = torch.full((target.shape.vocab_size,), -100, device=device)
        kept = torch.arange(target.shape.vocab_size, device=device) if ids is None else self.rows
        self.place[kept] = torch.arange(len(kept), device=device)

    @torch.no_grad()
    def look(self, ids: Tensor, roles: Tensor) -> tuple[Batch, Tensor]:
        """The batch, and the target's raw last rows [M, D] where the assistant speaks next."""
        hidden = self.target.hidden(ids, self.taps)
        wanted = torch.zeros_like(roles, dtype=torch.bool)
        wanted[:, self.steps : -1] = roles[:, self.steps + 1 :] == ASSISTANT
        where = wanted.reshape(-1).nonzero()[:, 0]
        dim = self.target.shape.hidden_size
        last = hidden[..., -dim:].reshape(-1, dim)[where]
        return Batch(ids, hidden[..., : self.width], where), last

    def draft_logits(self, head: DraftHead, outputs: Tensor, batch: Batch, depth: int) -> Tensor:
        """Logits [M, R] at `depth` of the chains that reach the batch's places."""
        rows = outputs.reshape(-1, outputs.shape[-1])[batch.where - 1 - depth]
        return F.linear(norm(rows, head.norm, self.target.shape.rms_norm_eps), self.head)


def loss_of(
    head: DraftHead, lesson: Lesson, settings: TrainSettings, ids: Tensor, roles: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The training loss of a batch of texts, and the plain loss by depth."""
    batch, last = lesson.look(ids, roles)
    with torch.no_grad():
        taught = lesson.target.logits(last, lesson.head).float()
        said = lesson.place[ids.reshape(-1)[batch.where + 1]]
    embedded = F.embedding(ids, lesson.target.embedding)
    total, by_depth = torch.zeros((), device=ids.device), []
    for depth, outputs in enumerate(head.chain(batch.hidden, embedded, settings.steps)):
        drafted = lesson.draft_logits(head, outputs, batch, depth)
        parts = [] if len(said) else [drafted.sum()]
        if "soft" in settings.loss and len(said):
            parts.append(losses.soft(drafted, taught, settings.soft_heat))
        if "hard" in settings.loss and len(said):
            parts.append(losses.hard(drafted, said))
        if "overlap" in settings.loss and len(said):
            parts.append(losses.overlap(drafted, taught, settings.overlap_heat))
        total = total + settings.depth_decay**depth * torch.stack(parts).sum()
        by_depth.append(parts[0].detach())
    return total, by_depth


def train(target: Target, talk: Conversations, settings: TrainSettings, folder: Path) -> DraftHead:
    """Train or go on training in `folder`; returns the head. Writes log.csv and state files."""
    workers = Workers.join()
    ids = draft_vocabulary(talk, settings.vocabulary, target.shape.vocab_size)
    generator = torch.Generator(target.device).manual_seed(settings.seed)
    head = start_from(target, settings.head, generator)
    lesson = Lesson(target, settings.head, settings.steps, ids)
    optimiser = torch.optim.AdamW(
        head.parameters(), settings.rate, (0.9, 0.95), weight_decay=settings.weight_decay
    )
    folder.mkdir(parents=True, exist_ok=True)
    length = talk.tokens.shape[1]
    last = max(1, settings.tokens // (settings.batch * workers.count * length))
    first = _load(folder / "state.safetensors", head, optimiser)
    log = Log(folder / "log.csv", quiet=workers.rank > 0)
    parameters = [p for p in head.parameters() if p.requires_grad]
    for step in range(first, last):
        for group in optimiser.param_groups:
            group["lr"] = settings.rate * _schedule(step, last, settings.warmup)
        rows = _rows(len(talk.tokens), settings, workers, step)
        tokens, roles = talk.tokens[rows], talk.roles[rows]
        total, by_depth = loss_of(
            head, lesson, settings, tokens.long().to(target.device), roles.to(target.device)
        )
        total.backward()
        workers.average(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        log.add(step, last, settings.batch * workers.count * length, by_depth)
        done = step + 1
        if workers.rank == 0 and (done % settings.save_every == 0 or done == last):
            _save(folder / "state.safetensors", head, optimiser, done, settings, ids)
    return head


def _schedule(step: int, last: int, warmup: int) -> float:
    """Linear warm-up, then half a cosine to zero."""
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / last))


def _rows(count: int, settings: TrainSettings, workers: Workers, step: int) -> Tensor:
    """Which texts a worker reads at a step: epochs are shuffles of the whole, seeded."""
    need = settings.batch * workers.count
    start = step * need
    places = range(
        start + workers.rank * settings.batch, start + (workers.rank + 1) * settings.batch
    )
    epochs = {place // count for place in places}
    orders = {
        epoch: torch.randperm(
            count, generator=torch.Generator().manual_seed(settings.seed * 7919 + epoch)
        )
        for epoch in epochs
    }
    return torch.stack([orders[place // count][place % count] for place in places])


class Log:
    """log.csv: step, tokens seen, tokens a second, loss by depth; every twentieth step."""

    EVERY = 20

    def __init__(self, path: Path, *, quiet: bool) -> None:
        self.path, self.quiet, self.began, self.seen = path, quiet, time.perf_counter(), 0

    def add(self, step: int, last: int, tokens: int, by_depth: list[Tensor]) -> None:
        """Note a step."""
        self.seen += tokens
        if self.quiet or (step % self.EVERY and step + 1 != last):
            return
        rate = self.seen / (time.perf_counter() - self.began)
        row = [step + 1, (step + 1) * tokens, round(rate), *(f"{x.item():.4f}" for x in by_depth)]
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(row)
        if step % (self.EVERY * 10) == 0 or step + 1 == last:
            print(f"step {step + 1}/{last}", *row[1:], flush=True)


def _save(
    path: Path, head: DraftHead, optimiser: torch.optim.Optimizer, step: int,
    settings: TrainSettings, ids: list[int] | None,
) -> None:  # fmt: skip
    tensors = {f"weight.{n}": p.detach() for n, p in head.named_parameters()}
    for name, p in head.named_parameters():
        for key in ("exp_avg", "exp_avg_sq"):
            tensors[f"{key}.{name}"] = optimiser.state[p][key]
    record = {"step": step, "settings": asdict(settings), "draft_vocabulary": ids}
    part = path.with_suffix(".part")
    save_file(
        {n: t.cpu().contiguous() for n, t in tensors.items()}, part, {"run": json.dumps(record)}
    )
    part.replace(path)


def _load(path: Path, head: DraftHead, optimiser: torch.optim.Optimizer) -> int:
    """Take a saved state up; returns the steps done."""
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file, torch.no_grad():
        record = json.loads(file.metadata()["run"])
        for name, p in head.named_parameters():
            p.copy_(file.get_tensor(f"weight.{name}"))
            optimiser.state[p] = {
                "step": torch.tensor(float(record["step"])),
                **{k: file.get_tensor(f"{k}.{name}").to(p) for k in ("exp_avg", "exp_avg_sq")},
            }
    return int(record["step"])


def trained(path: Path, target: Target) -> tuple[DraftHead, TrainSettings, list[int] | None, int]:
    """A saved head with its settings, draft vocabulary and steps done."""
    with safe_open(path, framework="pt") as file:
        record = json.loads(file.metadata()["run"])
        raw = record["settings"]
        shape = HeadShape(**{**raw["head"], "taps": tuple(raw["head"]["taps"])})
        settings = TrainSettings(**{**raw, "head": shape})
        head = DraftHead(target.shape, shape).to(target.device).requires_grad_(False)
        for name, p in head.named_parameters():
            p.copy_(file.get_tensor(f"weight.{name}"))
    return head, settings, record["draft_vocabulary"], int(record["step"])


def log_rows(folder: Path) -> Iterator[list[str]]:
    """The rows of a run's log."""
    with (folder / "log.csv").open(newline="") as file:
        yield from csv.reader(file)
