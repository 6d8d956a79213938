"""THE PAGE: one round of drafting, verification, acceptance and commit.

Owns the transaction. It names no model, no drafter and no executor, and never asks which it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flarechat.engine.accept import accept, clip
from flarechat.engine.frame import Frame, pack, token_logprobs
from flarechat.engine.sampling import target_law

if TYPE_CHECKING:
    from flarechat.engine.contracts import Drafter, Target
    from flarechat.engine.plan import Plan
    from flarechat.engine.slot import Lanes


def play_round(target: Target, drafter: Drafter, lanes: Lanes, plan: Plan) -> Frame:
    """Play one round over B lanes and return its frame.

    The laws:
    1. Row 0 is the pending token. Emitting t tokens consumes rows 0 … t-1; emitted token t-1
       becomes pending. 1 ≤ t ≤ accepted + 1.
    2. A terminal token stays pending: emitted, never consumed. A lane that finished before this
       round emits 0 and touches nothing.
    3. Target row i is conditioned on inputs[: i + 1] only; the law kept beside draft i is the law
       that really drew it (a point mass for copies).
    4. Nothing here depends on the value of a tensor in Python, only on the plan. Every tensor a
       slot owns is written in place at a fixed address.
    5. Rejected rows leave every state identical to ordinary decoding.
    6. Drafts are only proposals: a wrong one costs speed, never changes what the target says.
    7. Every tensor leads with the lane dimension B.

    No speculation is this page with K = 0; there is no other decode loop.
    """
    # Draft: guess up to K tokens after the pending one.
    proposal = drafter.propose(lanes, plan)

    # Verify: one target pass over [pending, d0 … dK-1], each row with its own law.
    inputs = lanes.inputs(proposal.tokens)  # [B, W]
    hidden, logits = target.verify(lanes, inputs, plan)  # [B, W, F], [B, W, V]
    law = target_law(logits, lanes, proposal.tokens, plan.law)

    # Accept: the longest prefix the target agrees with, then one token of its own; clip it.
    tokens, accepted = accept(law, proposal, lanes, plan.acceptance)
    emitted, finish = clip(tokens, accepted, lanes)

    # Commit: keep the state behind the emitted tokens, absorb the true rows, count.
    target.keep(lanes, emitted)
    drafter.absorb(lanes, inputs, hidden, emitted, plan)
    lanes.advance(tokens, emitted, finish)
    record = pack(lanes, proposal.offered, accepted, emitted, finish, tokens)
    return Frame(record, token_logprobs(logits, tokens, plan.logprobs) if plan.logprobs else None)
