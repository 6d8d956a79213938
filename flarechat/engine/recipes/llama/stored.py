"""A llama whose weights stay as their file has them, in tiles that the CPU's kernels read.

Owns which files can be kept so without rounding a number, what they take, and the calls that blocks
are. Activations are float32 between the calls, int8 inside their products; the cache is fp16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from flarechat.engine.kernels.cpu.operators import AttentionBlock, MlpBlock
from flarechat.engine.layers.embedding import TiledTable
from flarechat.engine.layers.linear import Linear, TiledLinear
from flarechat.engine.layers.rope import Rope
from flarechat.engine.recipes.llama.config import ModelArgs
from flarechat.engine.state.kv import KVState
from flarechat.engine.weights.tiles import Tiles
from flarechat.engine.window import Window


class TiledBlock:
    """As TransformerBlock, in two calls of C."""

    def __init__(self, attention: AttentionBlock, mlp: MlpBlock) -> None:
        self.attention, self.mlp = attention, mlp

    def __call__(
        self, x: Tensor, cache: KVState, layer: int, window: Window, extent: int
    ) -> Tensor:
        """x [B, W, D] → [B, W, D]. How far a row sees is read from the window."""
        return self.mlp(self.attention(x, window, cache.keys[layer], cache.values[layer]))

    def write(self, x: Tensor, cache: KVState, layer: int, window: Window) -> None:
        """Of x [B, W, D] only what later rows see: its keys and values."""
        self.attention.write(x, window, cache.keys[layer], cache.values[layer])


class TiledBlocks(tuple[TiledBlock, ...]):
    """As Blocks, in one call of C for as many as are run."""

    def __init__(self, blocks: Iterable[TiledBlock]) -> None:
        from flarechat.engine.kernels.cpu import chain

        self.calls = chain.Blocks([(block.attention, block.mlp) for block in self])

    def run(self, x: Tensor, cache: KVState, layers: range, window: Window, extent: int) -> Tensor:
        """x [B, W, D] through some of them, one after the other."""
        return self.calls(x, window, cache.keys, cache.values, layers) if layers else x


class TiledWeights:
    """Hands out matrices as `tiles` gives them by name, and `tensors` that are none in float32."""

    def __init__(self, tensors: Mapping[str, Tensor], tiles: Callable[[str], Tiles]) -> None:
        self._tensors, self._tiles = tensors, tiles

    def get(self, name: str) -> Tensor:
        """A vector as it is computed with."""
        return self._tensors[f"{name}.weight"].float()

    def table(self, name: str) -> TiledTable:
        """Rows for tokens."""
        return TiledTable(self._tiles(f"{name}.weight"))

    def linear(self, name: str) -> TiledLinear:
        """The product with this weight [out, in]."""
        return TiledLinear(self._tiles(f"{name}.weight"))

    def tied(self, table: TiledTable) -> TiledLinear:
        """The product with the weight of a table."""
        return TiledLinear(table.weight)

    def later(self, making: Callable[[], Linear]) -> Linear:
        """What `making` returns."""
        return making()

    def block(self, args: ModelArgs, base: str, rope: Rope) -> TiledBlock:
        """The block whose tensors' names begin with `base`, with the angles of all positions."""

        def tiles(part: str, *names: str) -> list[Tiles]:
            return [self._tiles(f"{base}.{part}.{name}_proj.weight") for name in names]

        q, k, v, out = tiles("self_attn", "q", "k", "v", "o")
        gate, up, down = tiles("mlp", "gate", "up", "down")
        eps = args.rms_norm_eps
        attention = AttentionBlock(
            self.get(f"{base}.input_layernorm"), eps, q, k, v, out, rope.cos, rope.sin,
            heads=args.num_attention_heads, kv_heads=args.num_key_value_heads,
            head_dim=args.head_dim,
        )  # fmt: skip
        after = self.get(f"{base}.post_attention_layernorm")
        return TiledBlock(attention, MlpBlock(after, eps, gate, up, down))

    def blocks(self, blocks: Iterable[TiledBlock]) -> TiledBlocks:
        """Blocks in their order."""
        return TiledBlocks(blocks)

    def close(self) -> None:
        """Nothing goes on."""
