"""What is asked, how it may be drafted and which law it is drawn from.

Owns the prompts, the contexts they are put behind and the names of arms and laws. A long context is
made of varied sentences, from a fixed seed; the question comes last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from flarechat.bench.arms import FIXED, Arm, parse_arms
from flarechat.bench.workloads import load_workloads
from flarechat.models.catalog import SMOLLM2
from flarechat.protocol import Sampling, Speculation

SEED = 1130
LAWS = {
    "ratio": Sampling(temperature=0.7, top_k=50, top_p=0.95),
    "match": Sampling(temperature=0.7, top_k=50, top_p=0.95, seed=SEED),
    "greedy": Sampling(temperature=0.0, seed=SEED),
    "recommended": SMOLLM2.recommended,
}
OFF, ADAPTIVE, HISTORY = "off", "adaptive", "adaptive+history"
ARMS = (OFF, *FIXED, ADAPTIVE, HISTORY)

QUESTIONS = (
    "Explain step by step how a bicycle stays upright while it moves, and why it falls when it "
    "stops.",
    "I have a free Saturday and it will rain all day. Suggest eight things to do at home, with two "
    "sentences about each.",
    "Write the opening page of a story about a lighthouse keeper who receives a letter addressed "
    "to someone who left the island forty years ago.",
    "Write a Python class named Stack with the methods push, pop, peek and is_empty, then explain "
    "every method in a paragraph.",
    "What should a beginner know before planting a vegetable garden? Go through soil, light, "
    "water, tools and the first month.",
    "Compare travelling by train and by plane inside Europe: cost, time, comfort and what it does "
    "to the climate.",
)
WARM_UP = "Count from one to sixty in words."
FOLLOW_UP = "Say the same again in half as many words."

_WHO = ("The harbour master", "A young surveyor", "Our neighbour Ilse", "The night nurse",
        "An old printer", "The choir", "Two students", "The baker", "A retired pilot",
        "The museum guard", "Every second visitor", "The postwoman")  # fmt: skip
_DID = ("measured", "painted", "forgot", "repaired", "described", "sold", "carried", "photographed",
        "counted", "borrowed", "cleaned", "moved")  # fmt: skip
_WHAT = ("the north wall", "eleven brass lamps", "a map of the valley", "the broken pump",
         "nine letters", "a crate of apples", "the oldest clock", "three wooden boats",
         "a notebook with blue covers", "the garden gate", "a bell from the chapel",
         "forty paces of rope")  # fmt: skip
_WHEN = ("before the ferry came", "in the last week of March", "while it snowed",
         "at half past six", "after the market closed", "without telling anyone",
         "during the long strike", "on the day the bridge opened", "for the second time",
         "when the tide was low")  # fmt: skip
_WHY = ("because the lease had ended", "since nobody else knew how", "to please the inspector",
        "and wrote down the weather", "although the key was missing", "so the road stayed dry",
        "and was paid in firewood", "as the agreement of 1911 required")  # fmt: skip


def arms(names: Sequence[str]) -> list[Arm]:
    """The arms of these names; a fixed width without drafts is `off`."""
    return list(parse_arms(",".join(names), Speculation()))


def copying(arm: Arm) -> Arm:
    """A fixed width that may copy as well."""
    speculation = replace(arm.speculation, history_drafts=True)
    return Arm(name=f"{arm.name}+history", speculation=speculation)


def edits() -> list[str]:
    """The bench's own prompts whose answer is mostly in the prompt."""
    return [workload.prompt for workload in load_workloads("edit")]


def behind(question: str, tokens: int, count: Callable[[str], int], seed: int) -> str:
    """`question` behind varied notes, together about `tokens` tokens; alone if there is no room."""
    room = tokens - count(question)
    draw, notes, used = random.Random(seed), list[str](), 0
    while used < room:
        number = len(notes) + 1
        note = (
            f"{number}. {draw.choice(_WHO)} {draw.choice(_DID)} {draw.choice(_WHAT)} "
            f"{draw.choice(_WHEN)}, {draw.choice(_WHY)}; page {draw.randrange(10, 990)}."
        )
        used += count(note + "\n")
        notes.append(note)
    if len(notes) < 2:
        return question
    listed = "\n".join(notes[:-1])
    return f"These are notes from an archive.\n{listed}\n\nLeave the notes aside now. {question}"
