"""Checkpoints in each published format, made of the tiny one, and what their bytes stand for.

The bytes are drawn, not rounded from values, and read by numpy loops that share no code with the
engine's: `Stored.tensors` is what a file holds, `Stored.values` the same model in floats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.engine.qwen38.tiny import CONFIG

PREFIX = "model.language_model."
TABLE = "layers.1.ple.ple_embedding.ngram_embedding"
EXPERTS = "layers.{}.mlp.experts"
MTP_EXPERTS = "mtp.layers.0.mlp.experts"
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
PARTS = 14  # of the table: more than ten, so that their numbers do not sort as words
FORMATS = ("bf16", "fp8", "nvfp4", "nvfp4-mtp-fp8", "fp4-local")


def e4m3(byte: int) -> float:
    """The value of one E4M3 byte, from its definition."""
    sign, exponent, mantissa = -1 if byte & 128 else 1, byte >> 3 & 15, byte & 7
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


E4M3 = np.array([e4m3(byte) for byte in range(256)], dtype=np.float32)


def numbers(tensor: Tensor) -> np.ndarray:
    """float32 values of bytes that are E4M3."""
    return E4M3[tensor.view(torch.uint8).numpy()]


@dataclass
class Stored:
    """A checkpoint in the making."""

    generator: np.random.Generator
    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)
    layers: dict[str, Any] = field(default_factory=dict)

    def bytes(self, *shape: int, low: int = 0, high: int = 256) -> Tensor:
        return torch.from_numpy(self.generator.integers(low, high, shape, dtype=np.uint8))

    def fp8(self, *shape: int) -> Tensor:
        """E4M3 between -60 and 60."""
        signed = self.bytes(*shape, high=106) | self.bytes(*shape, high=2) << 7
        return signed.view(torch.float8_e4m3fn)

    def steps(self, *shape: int) -> Tensor:
        """Block scales around one, as E4M3."""
        return self.bytes(*shape, low=48, high=64).view(torch.float8_e4m3fn)

    def nvfp4(
        self, name: str, out: int, wide: int, *, csf: bool = False, scale: float = 0.0
    ) -> Any:
        """A matrix's tensors under `name`; returns its values."""
        codes, steps = self.bytes(out, wide // 2), self.steps(out, wide // 16)
        last = scale or float(self.generator.uniform(0.02, 0.06))
        self.tensors[f"{name}.weight"] = codes
        self.tensors[f"{name}.weight_scale_2"] = torch.tensor(last)
        if csf:
            self.put_csf(f"{name}.weight_scale", steps)
        else:
            self.tensors[f"{name}.weight_scale"] = steps
        return read_nvfp4(codes, steps, last)

    def put_csf(self, name: str, steps: Tensor) -> None:
        """Scales between bytes 48 and 63: one base for all, but for a row that needs others."""
        plane = steps.view(torch.uint8).clone().numpy()
        base = np.full(len(plane), 48, np.uint8)
        exceptions = []
        plane[3, 1] = steps.view(torch.uint8)[3, 1] = 100
        exceptions.append(100 << 24 | 3 * plane.shape[1] + 1)
        codes = np.where(plane >= 64, 0, plane - 48).astype(np.uint8)
        slabs = []
        for first in range(0, len(plane), 16):
            rows = codes[first : first + 16].reshape(-1)
            slabs.append([*base[first : first + 16], *(rows[0::2] | rows[1::2] << 4)])
        self.tensors[f"{name}.nvfp4_csf_fixed"] = torch.tensor(np.array(slabs, dtype=np.uint8))
        words = np.array(exceptions, dtype=np.uint32)
        self.tensors[f"{name}.nvfp4_csf_exceptions"] = torch.from_numpy(words)

    def fp8_blocks(self, name: str, out: int, wide: int) -> Any:
        weight = self.fp8(out, wide)
        tiles = -(-out // 128), -(-wide // 128)
        scale = torch.from_numpy(self.generator.uniform(0.003, 0.006, tiles)).bfloat16()
        self.tensors[f"{name}.weight"] = weight
        self.tensors[f"{name}.weight_scale_inv"] = scale
        rows, columns = np.arange(out) // 128, np.arange(wide) // 128
        return numbers(weight) * scale.float().numpy()[np.ix_(rows, columns)]

    def mxfp8(self, name: str, out: int, wide: int) -> Any:
        weight, scale = self.fp8(out, wide), self.bytes(out, wide // 32, low=118, high=121)
        self.tensors[f"{name}.weight"], self.tensors[f"{name}.weight_scale"] = weight, scale
        powers = np.exp2(scale.numpy().astype(np.float32) - 127)
        return numbers(weight) * powers.repeat(32, axis=1)

    def experts(self, base: str, kind: str, *, input_scale: bool = False) -> None:
        """All experts of a layer, one by one; gate and up share no scale unless they must."""
        gates, downs = [], []
        dim, inner = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"]
        for expert in range(CONFIG["num_experts"]):
            made = []
            for part in ("gate", "up", "down"):
                shape = (dim, inner) if part == "down" else (inner, dim)
                made.append(self.matrix(f"{base}.{expert}.{part}_proj", kind, *shape))
                if input_scale:
                    self.tensors[f"{base}.{expert}.{part}_proj.input_scale"] = torch.tensor(1e-4)
            gates.append(np.concatenate(made[:2]))
            downs.append(made[2])
        self.values[f"{base}.gate_up_proj"] = torch.from_numpy(np.stack(gates))
        self.values[f"{base}.down_proj"] = torch.from_numpy(np.stack(downs))

    def matrix(self, name: str, kind: str, out: int, wide: int) -> Any:
        if kind in ("nvfp4", "csf"):
            return self.nvfp4(name, out, wide, csf=kind == "csf")
        return (
            self.fp8_blocks(name, out, wide)
            if kind == "fp8_blocks"
            else self.mxfp8(name, out, wide)
        )

    def table(self, base: str, kind: str, parts: int, rows: int, width: int) -> None:
        """The n-gram table in `parts` of `rows` rows."""
        found, last = [], torch.tensor([0.02]).bfloat16()
        for part in range(parts):
            name = f"{base}.shard_{part}"
            if kind == "fp8":
                self.tensors[f"{name}.weight"] = self.fp8(rows, width)
                found.append(numbers(self.tensors[f"{name}.weight"]) * float(last))
            else:
                found.append(self.nvfp4(name, rows, width, scale=0.1 + part / 16))
        if kind == "fp8":
            self.tensors[f"{base}.weight_scale"] = last
        self.values[f"{base}.weight"] = torch.from_numpy(np.concatenate(found))


def read_nvfp4(codes: Tensor, steps: Tensor, last: float) -> np.ndarray:
    """Values by the rule, one code at a time."""
    out, half = codes.shape
    values = np.empty((out, 2 * half), dtype=np.float32)
    scale = numbers(steps)
    for row in range(out):
        for byte in range(half):
            for which, code in enumerate((int(codes[row, byte]) & 15, int(codes[row, byte]) >> 4)):
                column = 2 * byte + which
                values[row, column] = E2M1[code] * scale[row, column // 16]
    return values * np.float32(last)


TARGET = {"bf16": "", "fp8": "fp8_blocks", "nvfp4": "nvfp4", "nvfp4-mtp-fp8": "nvfp4"}
MTP = {"bf16": "", "fp8": "fp8_blocks", "nvfp4": "", "nvfp4-mtp-fp8": "fp8_blocks"}


def stored(form: str, dense: dict[str, Tensor], head: dict[str, Tensor] | None = None) -> Stored:
    """`dense`, a checkpoint in floats, with the tensors that `form` packs in its place.

    `head` are the draft head's tensors.
    """
    made = Stored(np.random.default_rng(FORMATS.index(form)))
    floats = {name.removeprefix(PREFIX): tensor for name, tensor in dense.items()}
    floats |= head or {}
    target, mtp = TARGET.get(form, "csf"), MTP.get(form, "nvfp4")
    if target:
        for layer in range(CONFIG["num_hidden_layers"]):
            made.experts(EXPERTS.format(layer), target, input_scale=target != "fp8_blocks")
            if form == "fp4-local":
                made.layers[PREFIX + EXPERTS.format(layer)] = {
                    "quant_algo": "NVFP4", "group_size": 16, "weight_scale_encoding": "csf",
                }  # fmt: skip
        parts = [floats.pop(name) for name in sorted(floats) if f"{TABLE}.shard_" in name]
        kind, rows = "nvfp4" if form == "fp4-local" else "fp8", sum(map(len, parts))
        made.table(TABLE, kind, PARTS, rows // PARTS, parts[0].shape[1])
    if head and mtp:
        made.experts(MTP_EXPERTS, mtp)
        alias = MTP_EXPERTS.replace("layers.0", f"layers.{CONFIG['num_hidden_layers']}")
        made.layers[alias] = {"quant_algo": "FP8" if mtp == "fp8_blocks" else "NVFP4"}
    if form == "fp4-local":
        for name in ("layers.3.self_attn.o_proj", "layers.0.mlp.shared_expert.gate_proj"):
            made.values[f"{name}.weight"] = torch.from_numpy(
                made.matrix(name, "mxfp8", *floats[f"{name}.weight"].shape)
            )
            made.layers[PREFIX + name] = {"quant_algo": "MXFP8", "group_size": 32}
    packed = [name.rpartition(".experts.")[0] for name in made.tensors if ".experts." in name]
    for name, tensor in floats.items():
        if name in made.values or name.rpartition(".experts.")[0] in packed:
            continue
        if tensor.is_floating_point():
            tensor = tensor.bfloat16()
        made.tensors[name], made.values[name] = tensor, tensor
    made.tensors = {_full(name): tensor for name, tensor in made.tensors.items()}
    made.values = {_full(name): tensor for name, tensor in made.values.items()}
    return made


def _full(name: str) -> str:
    return name if name.startswith(("mtp.", "lm_head.")) else PREFIX + name
