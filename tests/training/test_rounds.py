"""Held-out prompts as people would type them, and what a run of rounds comes to."""

from __future__ import annotations

import torch

from training.conversations import ASSISTANT, TEMPLATE, USER, Conversations
from training.losses import Law
from training.rounds import Played, first_turns, table


class Letters:
    """Token n is the n-th letter; 0 closes a turn."""

    def decode(self, tokens):
        return "".join("." if t == 0 else chr(96 + t) for t in tokens)


def test_the_first_turn_ends_before_its_closing_token():
    own_end = ([9, 8, 9, 0, 7, 5], [TEMPLATE, USER, USER, USER, TEMPLATE, ASSISTANT])
    cut = ([9, 8, 9, 0, 7, 5], [TEMPLATE, USER, USER, TEMPLATE, TEMPLATE, ASSISTANT])
    empty = ([9, 0, 7, 5, 5, 5], [TEMPLATE, USER, TEMPLATE, ASSISTANT, ASSISTANT, ASSISTANT])
    tokens, roles = zip(own_end, cut, empty, strict=True)
    talk = Conversations(torch.tensor(tokens), torch.tensor(roles), torch.zeros(3))
    assert first_turns(talk, Letters(), (0,), 3) == ["hi", "hi"]
    assert first_turns(talk, Letters(), (0,), 1) == ["hi"]


def test_the_table_has_a_row_a_run():
    law = Law(0.7, 20, 0.95).name()
    text = table([Played(law, "ratio", 3, 10, 1.5, (0.8, 0.5, 0.2))])
    assert (
        text.splitlines()[-1] == "| 0.7/20/0.95 | ratio | 3 | 10 | 1.50 | 0.800 | 0.500 | 0.200 |"
    )
