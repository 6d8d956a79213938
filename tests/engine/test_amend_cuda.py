"""Rounds that are ended sooner, captured on a GPU: by plain calls behind the replay, the eager ones
to the bit."""

from __future__ import annotations

import pytest

from flarechat.protocol import Constraint, Sampling, Speculation
from tests.engine.constrained import OBJECT, require_object, tokens_of
from tests.engine.test_graph import assert_same_states
from tests.engine.test_graph_cuda import GREEDY, WARM, WHOLE, Pair, pair

pytestmark = pytest.mark.cuda
__all__ = ["pair"]


@pytest.mark.parametrize("sampling", [GREEDY, WARM, WHOLE])
@pytest.mark.parametrize("stop", [(), ("t",)], ids=["grammar", "stop"])
def test_judged_rounds_are_the_eager_ones(
    pair: Pair, sampling: Sampling, stop: tuple[str, ...]
) -> None:
    made, said = pair(), []
    for desk in made:
        told = []
        for draft_tokens in (0, 3, 7):
            how = Speculation(draft_tokens=draft_tokens, adaptive=False)
            finished, rounds = desk.ask(
                "hello", sampling=sampling, constraint=OBJECT, max_tokens=90, speculation=how,
                stop=stop,
            )  # fmt: skip
            told.append((tokens_of(rounds), finished.text, finished.reason))
            assert stop or any(r.redrawn for r in rounds)
            if not stop:
                require_object(finished.text)
        said.append(told)

    assert said[0] == said[1]
    assert said[0][0] == said[0][1] == said[0][2]
    assert_same_states(*made)


def test_lanes_with_and_without_a_constraint(pair: Pair) -> None:
    said = []
    words = Constraint(kind="regex", text="(hello|the|in|a)( (hello|the|in|a)){6}")
    for desk in pair(lanes=4):
        asked = [
            desk.request("hello the", sampling=WARM, constraint=c, max_tokens=40, logprobs=n)
            for n, c in enumerate((OBJECT, None, words, None))
        ]
        for request in asked:
            desk.engine.submit(request)
        desk.run()
        said.append([tokens_of(desk.rounds(request.id)) for request in asked])

    assert said[0] == said[1]
