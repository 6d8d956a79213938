"""What a sidecar is worth in real rounds: flarechat's own engine answers held-out prompts.

Each prompt is the first user's turn of a held-out conversation. A round that had fewer than K
drafts to offer (at the end of the budget) is left out of the means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flarechat import paths
from flarechat.engine.boot import boot_engine
from flarechat.engine.engine import Engine
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.protocol import Boot, Event, Message, Request, Round, Sampling, Speculation
from training.conversations import USER, Conversations
from training.losses import Law


@dataclass(frozen=True, slots=True)
class Played:
    """Rounds at one law, rule and K: drafts kept a round, and survival by depth."""

    law: str
    acceptance: str
    draft_tokens: int
    rounds: int
    accepted: float
    survival: tuple[float, ...]


def first_turns(
    talk: Conversations, tokenizer: Tokenizer, ends: Sequence[int], count: int
) -> list[str]:
    """The text of the first user's turn of the first `count` conversations, `ends` left out."""
    turns = []
    for tokens, roles in zip(talk.tokens.tolist(), talk.roles.tolist(), strict=True):
        start = roles.index(USER)
        end = next(i for i in range(start, len(roles)) if roles[i] != USER)
        said = [token for token in tokens[start:end] if token not in ends]
        turns.append(tokenizer.decode(said))
        if len(turns) == count:
            break
    return [turn for turn in turns if turn.strip()]


def open_engine(model: Path, sidecar: Path) -> Engine:
    """The engine with this sidecar; a refused one is an error."""
    told: list[Event] = []
    boot = Boot(model=str(model), cache=str(paths.cache_dir()), context=1024, mtp_file=str(sidecar))
    engine = boot_engine(boot, told.append)
    ready = told[-1]
    if ready.model.mtp is None or Path(ready.model.mtp.file).name != sidecar.name:
        raise ValueError(f"{sidecar} was not taken: {ready.notices}")
    return engine


def play(
    engine: Engine, prompts: Sequence[str], law: Law, acceptance: str, draft_tokens: int,
    max_tokens: int,
) -> Played:  # fmt: skip
    """Answer every prompt with K drafts in every round, copies off."""
    rounds = []
    for number, prompt in enumerate(prompts):
        rounds += _answer(engine, number, prompt, law, acceptance, draft_tokens, max_tokens)
    whole = [r for r in rounds if r.offered == draft_tokens]
    count = max(len(whole), 1)
    survival = tuple(sum(r.accepted > d for r in whole) / count for d in range(draft_tokens))
    accepted = sum(r.accepted for r in whole) / count
    return Played(law.name(), acceptance, draft_tokens, len(whole), accepted, survival)


def _answer(
    engine: Engine, number: int, prompt: str, law: Law, acceptance: str, draft_tokens: int,
    max_tokens: int,
) -> list[Round]:  # fmt: skip
    events: list[Event] = []
    engine.emit = events.append
    engine.submit(
        Request(
            id=f"prompt-{number}",
            messages=(Message(role="user", content=prompt),),
            sampling=Sampling(
                temperature=law.temperature, top_k=law.top_k, top_p=law.top_p, seed=number
            ),
            speculation=Speculation(
                draft_tokens=draft_tokens, adaptive=False, history_drafts=False,
                acceptance=acceptance,
            ),
            max_tokens=max_tokens,
        )
    )  # fmt: skip
    while engine.busy:
        engine.step()
    return [event for event in events if isinstance(event, Round)]


def table(found: Sequence[Played]) -> str:
    """A Markdown table, a row a run."""
    deep = max(len(one.survival) for one in found)
    head = ["law", "acceptance", "K", "rounds", "accepted", *(f"d{d + 1}" for d in range(deep))]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for one in found:
        cells = [one.law, one.acceptance, str(one.draft_tokens), str(one.rounds)]
        cells += [f"{one.accepted:.2f}", *(f"{x:.3f}" for x in one.survival)]
        lines.append("| " + " | ".join(cells + [""] * (deep - len(one.survival))) + " |")
    return "\n".join(lines)
