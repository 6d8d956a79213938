"""The MTP drafter: a learned head drafts in a chain, each guess fed with the one before.

Owns the head's rows of every slot: keys and values, of which row i pairs the target's hidden state
of token i with token i + 1, so that consumed - 1 rows exist; and the target's hidden rows of all
consumed tokens, from which those rows can be made again. Where the head keeps only the last of
them, every pass must be absorbed.

             token   0    1    2   …   N-1   N = pending   N+1
    hidden row       g0   g1   g2  …   gN-1
    draft row        (g0,x1) (g1,x2) …      (gN-1,xN) ▸ d0   (y,d0) ▸ d1   chain: y stands for gN
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from flarechat.engine import kernels, rng
from flarechat.engine.offer import Offer
from flarechat.engine.plan import extent_for
from flarechat.engine.proposal import Proposal
from flarechat.engine.sampling import TargetLaw, target_law
from flarechat.engine.slot import SCRATCH_ROWS, Lanes, SlotPool
from flarechat.engine.staging import Staging
from flarechat.engine.window import Window
from flarechat.protocol import MAX_DRAFT_TOKENS, HistoryTotals

if TYPE_CHECKING:
    from flarechat.engine.contracts import DraftHead, State
    from flarechat.engine.plan import Plan

_CATCH_UP = 256


@runtime_checkable
class WholeHead(Protocol):
    """A head that on a CPU also does in one call what it does step by step, to the bit."""

    def draft(self, drawn: Any, cache: Any, hidden: Any) -> None:
        """Draw all drafts of a chain, as `kernels.cpu.rounds` began it."""

    def absorb(
        self, exported: Tensor, inputs: Tensor | None, cache: Any, hidden: Any, window: Window
    ) -> None:
        """Keep of a pass what it exported as hidden rows, and with its inputs their pairs too."""


class MtpDrafter:
    """Drafts with `head` for S slots of `context` tokens each.

    `ready` has, for each slot, how many draft rows at its beginning can be relied on; a slot that
    drafts is kept up by every chunk and round, so all its rows can, however many there are.
    `_begun` says of each slot that may draft whether it has a hidden row to start from.
    """

    def __init__(
        self, head: DraftHead, slots: int, context: int, device: torch.device,
        staging: Staging | None = None,
    ) -> None:  # fmt: skip
        self.head, self.context, self.device = head, context, device
        self.cache, self.hidden = head.cache(slots, context)
        self._whole = head if isinstance(head, WholeHead) else None
        self._depth, depth = (staging or Staging(slots, device)).columns(1)
        self.depth = depth[:, 0]
        self.ready = [0] * slots
        # Counters of its own, which say where rows stand that are caught up with.
        self._caught_up = SlotPool(slots, context, 1, device)
        self._begun: dict[int, bool] = {}

    @property
    def always_absorbs(self) -> bool:
        """Without the older hidden rows, a draft row is made in its own pass or never."""
        return not self.hidden.keeps_all

    # Host.

    @torch.inference_mode()
    def open(
        self, slot: int, request: str, prompt: Sequence[int], *, restored: int, history: bool,
        mtp: bool,
    ) -> None:  # fmt: skip
        """Start drafting after catching up with the restored rows, or not at all."""
        self.close(slot)
        rows = max(restored - 1, 0)
        self.ready[slot] = rows if self.always_absorbs else min(self.ready[slot], rows)
        if mtp:
            self._catch_up(slot, prompt, rows)
            self._begun[slot] = len(prompt) > 1
            self.ready[slot] = self.context

    def _catch_up(self, slot: int, prompt: Sequence[int], rows: int) -> None:
        """Make the draft rows from the first that cannot be relied on up to `rows`."""
        for start in range(self.ready[slot], rows, _CATCH_UP):
            end = min(start + _CATCH_UP, rows)
            tokens = torch.tensor([prompt[start + 1 : end + 1]], device=self.device)
            self._caught_up.consumed[slot] = start
            window = Window(Lanes(self._caught_up, (slot,), prefilling=True), end - start)
            extent = extent_for(end, self.context + SCRATCH_ROWS)
            hidden = self.hidden.rows[slot, start:end][None]
            self.head.write(hidden, tokens, self.cache, window, extent)

    def stage(
        self, slot: int, limit: int, copied: int = 0, *, forced: Sequence[int] = (),
        legal: Callable[[Sequence[int]], int] | None = None,
    ) -> Offer:  # fmt: skip
        """A chain of up to `limit` drafts, once the slot has a hidden row to start from. What is
        staged before it is not its own."""
        learned = min(limit, MAX_DRAFT_TOKENS) if self._begun.get(slot) else 0
        self._depth[slot] = learned
        return Offer(learned=learned)

    def awaits(self, slot: int, copied: int = 0) -> bool:
        """The chain begins where the last round left the device; the first round of a prompt of one
        token leaves the first hidden row that it can begin from."""
        return self._begun.get(slot) is False

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Validated output; the page has absorbed it."""
        if tokens and slot in self._begun:
            self._begun[slot] = True

    def close(self, slot: int) -> tuple[HistoryTotals, HistoryTotals]:
        """The request ended; no look-ups were made."""
        self._depth[slot] = 0
        self._begun.pop(slot, None)
        return HistoryTotals(), HistoryTotals()

    def copied(self, source: int, target: int) -> None:
        """The draft rows came along: as many as could be relied on."""
        self.ready[target] = self.ready[source]

    def reliable(self, slot: int, rows: int) -> bool:
        """Whether the draft rows that go with so many tokens were made."""
        return self.always_absorbs or self.ready[slot] >= rows - 1

    def restored(self, slot: int, rows: int) -> None:
        """The draft rows came from elsewhere: those that go with so many tokens."""
        self.ready[slot] = max(rows - 1, 0)

    def states(self) -> Sequence[State]:
        """The draft rows and the hidden rows."""
        return (self.cache, self.hidden)

    # Page.

    def propose(self, lanes: Lanes, plan: Plan) -> Proposal:
        """A chain of K drafts; a lane offers as many as were staged for it."""
        if (steps := self._kernels(plan)) is not None:
            return self._chained(steps, lanes, plan, None)
        nothing = Proposal.empty(len(lanes), self.device)
        padding = self.depth.new_zeros(len(lanes), plan.draft_tokens)
        return self.extend(lanes, plan, Proposal(padding, nothing.offered))

    def extend(self, lanes: Lanes, plan: Plan, staged: Proposal) -> Proposal:
        """Each lane's first `staged.offered` drafts are the staged ones, point masses; the chain
        goes on from the last of them. `staged` is K wide."""
        if (steps := self._kernels(plan)) is not None:
            return self._chained(steps, lanes, plan, staged)
        hidden, token = self.hidden.last(lanes), lanes.pending()[:, None]
        drafts, laws, chain = staged.tokens[:, :0], [], dict[str, Tensor]()
        draws = self._draws(lanes, plan)
        for step in range(plan.draft_tokens):
            hidden = self._step(lanes, hidden, token, plan, step, chain)
            law = self._law(lanes, hidden, drafts, plan)
            own = law.only() if law.certain else self._drawn(lanes, law, plan, step, draws)
            forced = step < staged.offered[:, None]
            token = torch.where(forced, staged.tokens[:, step, None], own)
            drafts = torch.cat([drafts, token], dim=1)
            laws.append((law, forced))
        depth = self.depth.index_select(0, lanes.index).clamp_max(plan.draft_tokens)
        offered = torch.maximum(staged.offered, depth)
        return Proposal(drafts, offered, *self._laws(laws, drafts, plan), sure=staged.sure)

    def absorb(
        self, lanes: Lanes, inputs: Tensor, hidden: Tensor, emitted: Tensor, plan: Plan
    ) -> None:
        """Store the hidden rows and, if the plan asks, make the draft rows of all W pairs.

        Rows past what was emitted are unreachable, and overwritten before they are not.
        """
        if self._whole is not None and kernels.native(hidden):
            true = inputs if plan.absorb else None
            window = Window(lanes, plan.width)
            self._whole.absorb(hidden, true, self.cache, self.hidden, window)
            return
        own = self.head.condense(hidden)
        if plan.judged:
            self.hidden.hold(lanes)
        before = self.hidden.last(lanes) if plan.absorb else None
        self.hidden.store(lanes, own, emitted, plan)
        if before is not None:
            true = torch.cat([before, own[:, :-1]], dim=1)
            self._write(lanes, true, inputs, plan)

    def amend(self, lanes: Lanes, hidden: Tensor, kept: Tensor, plan: Plan) -> None:
        """Where only the last hidden row is kept, it is another; all else past the rows that count
        is unreachable."""
        if not self.hidden.keeps_all:
            self.hidden.rewind(lanes)
            self.hidden.store(lanes, self.head.condense(hidden), kept, plan)

    def _step(
        self, lanes: Lanes, hidden: Tensor, token: Tensor, plan: Plan, step: int,
        chain: dict[str, Tensor],
    ) -> Tensor:  # fmt: skip
        """The head's output [B, 1, D] at the pair that draft `step` is guessed from."""
        window = Window(lanes, 1, step - 1)
        return self.head.forward(hidden, token, self.cache, window, plan.extent, chain)

    def _write(self, lanes: Lanes, hidden: Tensor, tokens: Tensor, plan: Plan) -> None:
        """The rows of W pairs, of which the first has the pending token."""
        self.head.write(hidden, tokens, self.cache, Window(lanes, plan.width, -1), plan.extent)

    def _law(self, lanes: Lanes, output: Tensor, drafts: Tensor, plan: Plan) -> TargetLaw:
        """The request's own law over the head's logits, after `drafts`."""
        logits, ids = self.head.logits(output), self.head.vocabulary
        return target_law(logits, lanes, drafts, plan.law, first=drafts.shape[1], vocabulary=ids)

    def _kernels(self, plan: Plan) -> ModuleType | None:
        return kernels.of_round(self.depth) if plan.draft_tokens and plan.law.few else None

    def _chained(
        self, steps: ModuleType, lanes: Lanes, plan: Plan, staged: Proposal | None
    ) -> Proposal:
        """As `extend`, with each draft's law and draw in one kernel, or all of it in one call."""
        drawn = steps.drafts(lanes, self.depth, staged, plan)
        if self._whole is not None and kernels.native(self.depth):
            self._whole.draft(drawn, self.cache, self.hidden)
        else:
            self._stepwise(drawn, lanes, plan)
        points = plan.acceptance == "match" or plan.law.candidates == 1
        probs, ids = (None, None) if points else (drawn.probs, drawn.ids)
        sure = None if staged is None else staged.sure
        return Proposal(drawn.tokens, drawn.offered, probs, ids, sure)

    def _stepwise(self, drawn: Any, lanes: Lanes, plan: Plan) -> None:
        """Draw all drafts of a chain."""
        hidden, token = self.hidden.last(lanes), lanes.pending()[:, None]
        chain = dict[str, Tensor]()
        for step in range(plan.draft_tokens):
            hidden = self._step(lanes, hidden, token, plan, step, chain)
            logits = self.head.logits(hidden)
            token = drawn.draw(step, logits, plan.law.penalties, self.head.vocabulary)

    def _draws(self, lanes: Lanes, plan: Plan) -> Tensor | None:
        """float32 [B, K]: each draft's own draw; None where none decides."""
        if plan.acceptance == "match" or plan.law.candidates == 1 or not plan.draft_tokens:
            return None
        first = rng.DRAFT_STRIDE * lanes.next_positions(plan.draft_tokens)
        return rng.uniforms(lanes.seed()[:, None], rng.DRAFT, first, 1)[..., 0]

    def _drawn(
        self, lanes: Lanes, law: TargetLaw, plan: Plan, step: int, draws: Tensor | None
    ) -> Tensor:
        """Draft `step` [B, 1]: with the target's own noise for lanes accepted by match."""
        if draws is not None and plan.acceptance == "ratio":
            return law.token_at_mass(draws[:, step, None])
        seed, position = lanes.seed()[:, None, None], lanes.positions(1, step + 1)[..., None]
        shared = law.draw(rng.gumbel(seed, rng.SAMPLE, position, law.candidates()))
        if draws is None:
            return shared
        own = law.token_at_mass(draws[:, step, None])
        return torch.where(lanes.match()[:, None], shared, own)

    def _laws(
        self, laws: list[tuple[TargetLaw, Tensor]], drafts: Tensor, plan: Plan
    ) -> tuple[Tensor | None, Tensor | None]:
        """float32 and int64 [B, K, C]: each draft's law, a point where it was staged; no law if
        all are points or nobody will look, no ids where the candidates are the vocabulary."""
        if plan.acceptance == "match" or plan.law.candidates == 1 or not laws:
            return None, None
        # One candidate count for all steps: the plan and the head's vocabulary decide it.
        forced = torch.cat([forced for _, forced in laws], dim=1)[..., None]
        probs = torch.cat([law.probs for law, _ in laws], dim=1)
        probs = torch.where(forced, 0.0, probs)
        if laws[0][0].ids is None:
            return probs.scatter_add_(2, drafts[..., None], forced.float()), None
        ids = torch.cat([law.candidates() for law, _ in laws], dim=1)
        first = torch.where(forced, drafts[..., None], ids[..., :1])
        probs[..., :1] += forced
        return probs, torch.cat([first, ids[..., 1:]], dim=-1)
