"""The MTP head of a llama whose weights stay as their file has them: its chains in one call of C.

Owns which of the head's numbers that call is given. It does what the head does step by step, to the
bit.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from flarechat.engine.kernels.cpu import chain
from flarechat.engine.layers.embedding import TiledTable
from flarechat.engine.layers.linear import TiledLinear
from flarechat.engine.recipes.llama.mtp import MtpHead
from flarechat.engine.recipes.llama.stored import TiledBlocks
from flarechat.engine.window import Window

if TYPE_CHECKING:
    from flarechat.engine.kernels.cpu.rounds import Chain
    from flarechat.engine.state.hidden import HiddenState
    from flarechat.engine.state.kv import KVState


class TiledHead(MtpHead):
    """As MtpHead, of tiles."""

    @cached_property
    def calls(self) -> chain.Head:
        """The head as C knows it, once all of its weights are there."""
        norms = self.norm_hidden, self.norm_embedding, self.norm
        fuse, blocks = self.fuse, self.blocks
        assert isinstance(blocks, TiledBlocks) and isinstance(self.embedding, TiledTable)
        assert isinstance(self.fc, TiledLinear) and isinstance(self.head, TiledLinear)
        assert fuse is None or isinstance(fuse, TiledLinear)
        return chain.Head(
            blocks.calls,
            (norms[0].weight, norms[1].weight, norms[2].weight),
            self.norm.eps,
            embedding=self.embedding.weight,
            pairing=self.fc.weight,
            fuse=fuse.weight if fuse else None,
            output=self.head.weight,
            vocabulary=self.vocabulary,
        )

    def draft(self, drawn: Chain, cache: KVState, hidden: HiddenState) -> None:
        """Draw all drafts of a chain."""
        spare = Window(drawn.lanes, 1).spare
        self.calls.draft(drawn, hidden.rows, spare, cache.keys, cache.values)

    def absorb(
        self, exported: Tensor, inputs: Tensor | None, cache: KVState, hidden: HiddenState,
        window: Window,
    ) -> None:  # fmt: skip
        """Keep of a pass what it exported, [B, W, D * taps], as hidden rows; with its inputs int64
        [B, W] also what `write` keeps of their pairs. The window is the pass's own."""
        self.calls.absorb(window, hidden.rows, exported, inputs, cache.keys, cache.values)

    def _pair(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return self.calls.pair(hidden, tokens)
