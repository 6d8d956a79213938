"""The target writes conversations with itself: user's turns and answers, in its chat template.

A conversation opens the template at the user's turn and samples (Xu et al. 2024, "Magpie"), then
the assistant answers at one of several temperatures, and so on until the length is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flarechat.engine.text.template import ChatTemplate
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.engine.weights import Checkpoint
from flarechat.protocol import Message
from training.target import DecodeCache, Target

TEMPLATE, USER, ASSISTANT = 0, 1, 2
_USER_MARK, _ASSISTANT_MARK = "\ue000", "\ue001"


@dataclass(frozen=True, slots=True)
class Frame:
    """The template's fixed token runs: before the first user's turn, after one, after an answer.

    The runs after a turn leave out its closing token, which whoever speaks samples.
    """

    opening: tuple[int, ...]
    to_assistant: tuple[int, ...]
    to_user: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Frame:
        """Cut the rendered template at two marks that stand for the turns."""
        tokenizer = Tokenizer(checkpoint.tokenizer_json)
        template = ChatTemplate(
            checkpoint.chat_template, checkpoint.bos_token, checkpoint.eos_token
        )
        talk = [
            Message(role="user", content=_USER_MARK),
            Message(role="assistant", content=_ASSISTANT_MARK),
            Message(role="user", content=_USER_MARK),
        ]
        opening, rest = template.render(talk).split(_USER_MARK, 1)
        after_user, rest = rest.split(_ASSISTANT_MARK, 1)
        after_answer = rest.split(_USER_MARK, 1)[0]
        runs = [tokenizer.encode(text) for text in (opening, after_user, after_answer)]
        ends = tuple(checkpoint.eos_token_ids)
        if runs[1][0] not in ends or runs[2][0] not in ends:
            raise ValueError("the chat template does not close a turn with a terminal token")
        return cls(tuple(runs[0]), tuple(runs[1][1:]), tuple(runs[2][1:]), ends)


@dataclass(frozen=True, slots=True)
class Voices:
    """How turns are sampled. `answers` lists (temperature, top_k, top_p), dealt out by row."""

    user: tuple[float, int, float] = (1.0, 50, 0.98)
    answers: tuple[tuple[float, int, float], ...] = (
        (0.0, 1, 1.0),
        (0.2, 50, 0.9),
        (0.7, 20, 0.95),
        (0.7, 20, 0.95),
        (1.0, 20, 0.95),
    )
    user_tokens: int = 96


@dataclass(frozen=True, slots=True)
class Conversations:
    """tokens int32 [N, T], roles uint8 [N, T] (who chose each token), voice uint8 [N]."""

    tokens: Tensor
    roles: Tensor
    voice: Tensor


class _Speakers:
    """Whose turn it is in each row, and what the template forces next."""

    def __init__(self, frame: Frame, voices: Voices, batch: int, device: torch.device) -> None:
        self.frame, self.voices = frame, voices
        longest = max(len(frame.to_assistant), len(frame.to_user))
        runs = torch.zeros(2, longest, dtype=torch.long, device=device)
        runs[0, : len(frame.to_assistant)] = torch.tensor(frame.to_assistant)
        runs[1, : len(frame.to_user)] = torch.tensor(frame.to_user)
        self.runs = runs
        sizes = [len(frame.to_assistant), len(frame.to_user)]
        self.sizes = torch.tensor(sizes, device=device)
        self.ends = torch.tensor(frame.ends, device=device)
        self.answering = torch.zeros(batch, dtype=torch.long, device=device)
        self.forced = torch.full((batch,), -1, dtype=torch.long, device=device)
        self.spoken = torch.zeros(batch, dtype=torch.long, device=device)
        self.voice = torch.arange(batch, device=device) % len(voices.answers)
        table = torch.tensor([voices.user, *voices.answers], device=device)
        self.table = table

    def law(self) -> tuple[Tensor, Tensor, Tensor]:
        """temperature, top_k, top_p of every row's speaker, each [B]."""
        row = torch.where(self.answering == 1, self.voice + 1, 0)
        return tuple(self.table[row].unbind(-1))  # type: ignore[return-value]

    def take(self, sampled: Tensor) -> tuple[Tensor, Tensor]:
        """Replace sampled tokens [B] by forced ones where due; returns tokens and roles [B]."""
        forced = self.forced >= 0
        run = self.runs[self.answering].gather(1, self.forced.clamp_min(0)[:, None])[:, 0]
        tired = (self.answering == 0) & (self.spoken >= self.voices.user_tokens) & ~forced
        token = torch.where(forced, run, torch.where(tired, self.ends[0], sampled))
        roles = torch.where(forced | tired, TEMPLATE, self.answering + USER)
        ended = ~forced & (token[:, None] == self.ends).any(-1)
        step = torch.where(forced, self.forced + 1, self.forced)
        done = forced & (step >= self.sizes[self.answering])
        self.answering = torch.where(done, 1 - self.answering, self.answering)
        self.forced = torch.where(ended, 0, torch.where(done, -1, step))
        self.spoken = torch.where(forced | ended, 0, self.spoken + 1)
        return token, roles


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, most: int,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """One token a row from logits [B, V]; parameters [B]; at most `most` candidates."""
    values, ids = logits.topk(min(most, logits.shape[-1]), dim=-1)
    heat = temperature.clamp_min(1e-3)[:, None]
    probs = torch.softmax(values.float() / heat, dim=-1)
    rank = torch.arange(values.shape[-1], device=logits.device)
    probs = torch.where(rank < top_k[:, None], probs, 0.0)
    probs = probs / probs.sum(-1, keepdim=True)
    probs = torch.where(probs.cumsum(-1) - probs < top_p[:, None], probs, 0.0)
    return ids.gather(1, torch.multinomial(probs, 1, generator=generator))[:, 0]


@torch.no_grad()
def converse(
    target: Target, frame: Frame, voices: Voices, *, batch: int, length: int, seed: int,
    openers: Sequence[Sequence[int]] = (),
) -> Conversations:  # fmt: skip
    """`batch` conversations of `length` tokens. Every second row begins with an opener, if any."""
    device = target.device
    generator = torch.Generator(device).manual_seed(seed)
    speakers = _Speakers(frame, voices, batch, device)
    cache = DecodeCache(target, batch, length)
    start = len(frame.opening)
    tokens = torch.zeros(batch, length, dtype=torch.long, device=device)
    roles = torch.zeros(batch, length, dtype=torch.uint8, device=device)
    tokens[:, :start] = torch.tensor(frame.opening, device=device)
    begun = _openings(openers, batch, generator, device)
    logits = cache.extend(tokens[:, :start])
    most = max(int(law[1]) for law in (voices.user, *voices.answers))
    for at in range(start, length):
        drawn = sample(logits, *speakers.law(), most, generator)
        if at - start < begun.shape[1]:
            given = begun[:, at - start]
            drawn = torch.where(given >= 0, given, drawn)
        tokens[:, at], roles[:, at] = speakers.take(drawn)
        if at + 1 < length:
            logits = cache.extend(tokens[:, at : at + 1])
    return Conversations(tokens.int(), roles, speakers.voice.to(torch.uint8))


def _openings(
    openers: Sequence[Sequence[int]], batch: int, generator: torch.Generator, device: torch.device
) -> Tensor:
    """int64 [B, longest]: the first tokens of odd rows' first turn, -1 where free."""
    longest = max((len(opener) for opener in openers), default=0)
    table = torch.full((len(openers) + 1, longest), -1, dtype=torch.long, device=device)
    for row, opener in enumerate(openers):
        table[row, : len(opener)] = torch.tensor(opener)
    chosen = torch.randint(0, max(len(openers), 1), (batch,), generator=generator, device=device)
    odd = torch.arange(batch, device=device) % 2 == 1
    return table[torch.where(odd, chosen, len(openers))]
