"""What a head is worth on held-out conversations: exact acceptance by law and depth.

Only assistant tokens count, under the law they were sampled with. A chain is begun at every
assistant token; its draft at depth d is kept with the share sum min(p, q) there, p and q filtered
by the law, and the chain survives with the product of the shares so far. A depth past the end of
the answer counts as refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.conversations import ASSISTANT, Conversations, Voices
from training.head import DraftHead
from training.losses import Law, accepted_share
from training.target import Target, norm


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Under one law, over `chains` chains: shares and survival by depth, drafts kept a round."""

    law: str
    chains: int
    share: tuple[float, ...]
    survival: tuple[float, ...]

    def accepted(self, draft_tokens: int) -> float:
        """Mean drafts kept in a round that offers `draft_tokens`."""
        return sum(self.survival[:draft_tokens])


@torch.no_grad()
def evaluate(
    target: Target, head: DraftHead, ids: list[int] | None, talk: Conversations, *,
    depth: int, voices: Voices | None = None, batch: int = 16,
) -> list[Acceptance]:  # fmt: skip
    """The acceptance under each law of `voices`, on the conversations spoken under it."""
    answers = (voices or Voices()).answers
    found = []
    for law in dict.fromkeys(answers):
        spoken = [i for i, answer in enumerate(answers) if answer == law]
        rows = torch.isin(talk.voice, torch.tensor(spoken, dtype=talk.voice.dtype))
        tokens, roles = talk.tokens[rows], talk.roles[rows]
        if not len(tokens):
            continue
        shares, alive = _shares(target, head, ids, tokens, roles, Law(*law), depth, batch)
        reached = torch.where(alive, shares, 0.0)
        found.append(
            Acceptance(
                Law(*law).name(),
                len(shares),
                tuple((reached.sum(0) / alive.sum(0).clamp_min(1)).tolist()),
                tuple((reached.cumprod(1).sum(0) / max(len(shares), 1)).tolist()),
            )
        )
    return found


def _shares(
    target: Target, head: DraftHead, ids: list[int] | None, tokens: Tensor, roles: Tensor,
    law: Law, depth: int, batch: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Shares [chains, depth] and whether the answer reaches that depth, bool [chains, depth]."""
    taps, last = head.shape.taps, target.shape.num_hidden_layers
    every = (*taps, *(() if last in taps else (last,)))
    rows = None if ids is None else torch.tensor(ids, device=target.device)
    weight = target.head if rows is None else target.head[rows]
    shares, alive = [], []
    for start in range(0, len(tokens), batch):
        said = tokens[start : start + batch].long().to(target.device)
        spoken = roles[start : start + batch].to(target.device) == ASSISTANT
        hidden = target.hidden(said, every)
        dim, length = target.shape.hidden_size, said.shape[1]
        starts = spoken[:, 2 : length - depth + 1].nonzero()
        row, at = starts[:, 0], starts[:, 1]
        embedded = F.embedding(said, target.embedding)
        outputs = head.chain(hidden[..., : dim * len(taps)], embedded, depth)
        columns = []
        for place, y in enumerate(outputs):
            drafted = F.linear(norm(y[row, at], head.norm, target.shape.rms_norm_eps), weight)
            true = target.logits(hidden[row, at + 1 + place, -dim:])
            columns.append(_in_pieces(drafted, true, rows, law))
        shares.append(torch.stack(columns, 1).cpu())
        reach = torch.stack([spoken[row, at + 2 + d] for d in range(depth)], 1)
        alive.append(reach.cumprod(1).bool().cpu())
    return torch.cat(shares), torch.cat(alive)


def _in_pieces(drafted: Tensor, true: Tensor, ids: Tensor | None, law: Law) -> Tensor:
    pieces = zip(drafted.split(8192), true.split(8192), strict=True)
    return torch.cat([accepted_share(d, t, ids, law) for d, t in pieces])


def table(found: list[Acceptance], draft_tokens: tuple[int, ...] = (1, 3, 5, 7)) -> str:
    """A Markdown table: a row a law, survival by depth, drafts kept at each K."""
    deep = len(found[0].survival)
    kept = [k for k in draft_tokens if k <= deep]
    head = ["law (T/top-k/top-p)", "chains", *(f"d{d + 1}" for d in range(deep))]
    head += [f"K={k}" for k in kept]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for one in found:
        cells = [one.law, str(one.chains), *(f"{x:.3f}" for x in one.survival)]
        cells += [f"{one.accepted(k):.2f}" for k in kept]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
