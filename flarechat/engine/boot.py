"""From a Boot to a serving Engine: choose device and dtype, price, load, assemble."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flarechat.engine import dtypes
from flarechat.engine.allocated import allocated
from flarechat.engine.answer import Emit
from flarechat.engine.contracts import Drafter, Target
from flarechat.engine.controller import Controller
from flarechat.engine.drafters import blend, make_drafter
from flarechat.engine.drafters.mtp import MtpDrafter
from flarechat.engine.engine import Engine
from flarechat.engine.executors import choose, make_executor
from flarechat.engine.executors.catalogue import Catalogue
from flarechat.engine.executors.scratch import Sizes, scratch
from flarechat.engine.heads import LoadedHead, Setup, load_head
from flarechat.engine.keeper import Keeper
from flarechat.engine.kernels import available as kernels_available
from flarechat.engine.kernels import cpu
from flarechat.engine.language import Language
from flarechat.engine.memory import HEADROOM, Terms, admit, host_available, snapshot_budget
from flarechat.engine.recipes import SUPPORTED, recipe_for
from flarechat.engine.slot import MAX_EOS, SCRATCH_ROWS, SlotPool
from flarechat.engine.staging import Staging
from flarechat.engine.text.template import ChatTemplate, encode_chat
from flarechat.engine.text.tokenizer import Tokenizer
from flarechat.engine.vault import Vault
from flarechat.engine.weights import Checkpoint, load_checkpoint
from flarechat.errors import ModelError, SettingsError
from flarechat.protocol import (
    MAX_LANES,
    STORED,
    Boot,
    Loading,
    MemoryInfo,
    Message,
    ModelInfo,
    MtpInfo,
    Ready,
    Tool,
)
from flarechat.vault.identity import Identity

_TAPS = 8  # more layers than any head taps


def boot_engine(boot: Boot, emit: Emit) -> Engine:
    """Load the model of `boot` and return an engine that takes requests; emits Ready last."""
    began = time.perf_counter()
    emit(Loading(stage="start"))
    if boot.threads:
        torch.set_num_threads(boot.threads)
    device = _device(boot.device)
    dtypes.require(boot.dtype, device)
    if device.index is not None:
        torch.cuda.set_device(device)

    def progress(stage: str, done: int, total: int) -> None:
        emit(Loading(stage=stage, done=done, total=total))

    checkpoint = load_checkpoint(Path(boot.model), Path(boot.cache), progress, supported=SUPPORTED)
    recipe = recipe_for(checkpoint.architecture)
    args = recipe.ModelArgs.from_config(checkpoint.config)
    _require_layers(args.num_hidden_layers, len(checkpoint.tensors))
    notices = list[str]()
    tensors = checkpoint.tensors
    dtype = dtypes.choose(boot.dtype, device, recipe, args, tensors, notices.append)
    if device.type == "cpu":
        _give_threads(boot.threads, dtype)
    lanes = _lanes(boot.lanes)
    capacity = _capacity(boot.speculative_token_capacity, lanes)
    context = _context(boot.context, args.max_position_embeddings)
    how, why = _executor(boot.executor, device, capturable=recipe.Model.capturable)
    setup = Setup(
        device=device, dtype=dtype, lanes=lanes, context=context, available=_available(device),
        capacity=capacity,
    )  # fmt: skip

    def quote(terms: Terms) -> dict[str, int]:
        return _prices(recipe, args, checkpoint, setup.under(terms), how == "graph", terms.mtp)

    admit(quote, setup.terms(), setup.available)
    target = recipe.load(
        checkpoint.config, tensors, slots=lanes, context=context, dtype=dtype, device=device
    )  # fmt: skip
    mtp = load_head(boot, recipe, target, checkpoint, quote, setup, notices.append)
    info = _describe(checkpoint, args, context, dtype, device, mtp.info if mtp else None)
    staging, pool = Staging(lanes, device), SlotPool(lanes, context, args.vocab_size, device)
    drafter = _drafter(mtp, setup, staging)
    catalogue = _catalogue(setup, mtp is not None, drafter.always_absorbs)
    executor = make_executor(how, target, drafter, staging, pool, catalogue, progress)
    parts = (target, mtp and mtp.head, drafter.states(), pool, staging)
    priced = {**quote(setup.terms(mtp=mtp is not None)), **(mtp.priced if mtp else {})}
    memory = MemoryInfo(priced=priced, allocated=allocated(parts, device, dtype, how))
    info = dataclasses.replace(info, memory=memory, executor=how, executor_reason=why)
    keeper = _keeper(boot, info, mtp, target, drafter, setup)
    engine = Engine(
        drafter, executor, pool, language_of(checkpoint), Controller(info.device_fingerprint),
        emit, keeper, capacity,
    )  # fmt: skip
    spent = 1e3 * (time.perf_counter() - began)
    memory = dataclasses.replace(memory, snapshots=keeper.tree.budget)
    info = dataclasses.replace(info, memory=memory)
    emit(Ready(model=info, lanes=lanes, load_ms=spent, notices=tuple(notices)))
    return engine


def _executor(asked: str, device: torch.device, *, capturable: bool) -> tuple[str, str]:
    """How rounds are run, and why so."""
    cuda = device.type == "cuda"
    return choose(asked, cuda=cuda, kernels=kernels_available(), capturable=capturable)


def _drafter(mtp: LoadedHead | None, setup: Setup, staging: Staging) -> Drafter:
    """What proposes: copies, and beside them the chain of a head that was loaded."""
    lanes, device = setup.lanes, setup.device
    drafter = make_drafter("copies", lanes, device, staging)
    if mtp is None:
        return drafter
    return blend(drafter, MtpDrafter(mtp.head, lanes, setup.context, device, staging))


def _keeper(
    boot: Boot, info: ModelInfo, mtp: LoadedHead | None, target: Target, drafter: Drafter,
    setup: Setup,
) -> Keeper:  # fmt: skip
    """Snapshots of this model and head, in what is left beside what was priced."""
    identity = Identity(
        recipe=info.recipe, fingerprint=f"{info.fingerprint}|{mtp.identity if mtp else ''}",
        dtype=info.dtype, device=info.device,
    )  # fmt: skip
    assert info.memory is not None
    left = setup.available - sum(info.memory.priced.values())
    budget = snapshot_budget(boot.prefix_cache, int(left * HEADROOM))
    widths = target.features, target.vocabulary
    keeper = Keeper(identity, budget, target.states(), drafter, widths)
    if budget and boot.prefix_cache_disk:
        keeper.tree.store = Vault(
            Path(boot.cache) / "snapshots", identity, model=info.name,
            budget=boot.prefix_cache_disk << 20, context=setup.context, device=setup.device,
            fits=keeper.fits,
        )  # fmt: skip
    return keeper


def _give_threads(asked: int | None, dtype: str) -> None:
    """Let the CPU's kernels have them, if any. Where they compute the passes torch keeps one: what
    is left to it is small, and its idle threads spin where those of the kernels work."""
    library = cpu.library()
    if library is not None and asked:
        library.set_threads(asked)
    if dtype == STORED:
        torch.set_num_threads(1)


def language_of(checkpoint: Checkpoint) -> Language:
    """Tokenizer, chat template and terminal tokens of a checkpoint."""
    tokenizer = Tokenizer(checkpoint.tokenizer_json)
    rows, ids, ends = (
        checkpoint.config["vocab_size"],
        tokenizer.vocabulary,
        checkpoint.eos_token_ids,
    )
    if ids > rows or len(ends) > MAX_EOS:
        raise ModelError(
            f"The tokenizer has {ids} tokens, {len(ends)} of them terminal; the model has {rows} "
            f"rows and at most {MAX_EOS} terminal tokens can be watched for.",
            "The files do not belong together; download them again, or choose another model.",
        )
    template = ChatTemplate(checkpoint.chat_template, checkpoint.bos_token, checkpoint.eos_token)
    own = checkpoint.fingerprint

    def encode(
        messages: Sequence[Message], thinking: bool = True, tools: Sequence[Tool] = ()
    ) -> list[int]:
        return encode_chat(template, tokenizer, messages, thinking=thinking, model=own, tools=tools)

    return Language(tokenizer, encode, checkpoint.eos_token_ids, lambda: template.form)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = re.fullmatch(r"cuda(?::(\d+))?", name)
    if name == "cpu" or (cuda and int(cuda[1] or 0) < torch.cuda.device_count()):
        return torch.device(name)
    remedy = "Use --device auto, cpu or cuda; cuda needs an NVIDIA GPU and a CUDA build of torch."
    raise SettingsError(f"--device {name} is not available here.", remedy)


def _require_layers(claimed: int, tensors: int) -> None:
    """Refuse more layers than there are tensors, before anything is reckoned for every layer."""
    if claimed > tensors:
        raise ModelError(
            f"The model claims {claimed} layers and has {tensors} tensors.",
            "The file is damaged; download it again, or give another one with --model.",
        )


def _prices(
    recipe: Any, args: Any, checkpoint: Checkpoint, setup: Setup, captured: bool, mtp: bool
) -> dict[str, int]:
    """Bytes of everything but a head: the model's, by its file where its recipe keeps weights as
    they are stored; what slots hold; and, where they are `captured`, what rounds need."""
    lanes, context, dtype = setup.lanes, setup.context, setup.dtype
    if hasattr(recipe, "price_stored"):
        stored = checkpoint.config, checkpoint.tensors
        prices = dict(recipe.price_stored(
            args, *stored, slots=lanes, context=context, dtype=dtype, device=setup.device
        ))  # fmt: skip
    else:
        prices = dict(recipe.price(args, lanes, context, dtype))
    prices["slots"] = SlotPool.price(lanes, args.vocab_size) + Staging.price(lanes)
    if captured:
        prices["rounds"] = scratch(_catalogue(setup, mtp), _sizes(args, dtype, mtp))
    return prices


def _catalogue(setup: Setup, learned: bool, always_absorbs: bool = False) -> Catalogue:
    return Catalogue(
        slots=setup.lanes, capacity=setup.capacity, context=setup.context,
        extent=setup.context + SCRATCH_ROWS, learned=learned, always_absorbs=always_absorbs,
    )  # fmt: skip


def _sizes(args: Any, dtype: str, mtp: bool) -> Sizes:
    """Of a target and, if it is drafted for, a head that taps many layers and drafts any token."""
    return Sizes(
        vocabulary=args.vocab_size, hidden=args.hidden_size, inner=args.intermediate_size,
        heads=args.num_attention_heads, kv_heads=args.num_key_value_heads,
        head_dim=args.head_dim, itemsize=4 if dtype == "float32" else 2,
        taps=_TAPS if mtp else 1, drafts=args.vocab_size if mtp else 0,
    )  # fmt: skip


def _lanes(asked: int) -> int:
    if not 1 <= asked <= MAX_LANES:
        raise SettingsError(
            f"--concurrency {asked} is out of range.", f"Give a value from 1 to {MAX_LANES}."
        )
    return 4 if asked == 3 else asked


def _capacity(asked: int, lanes: int) -> int:
    if asked < lanes:
        raise SettingsError(
            f"--speculative-token-capacity {asked} is out of range.",
            f"Give {lanes} or more, one for each answer at once.",
        )
    return asked


def _context(asked: int | None, most: int) -> int:
    if asked is None:
        return most
    if not 2 <= asked <= most:
        raise SettingsError(
            f"--ctx {asked} is out of range.", f"This model takes 2 to {most} tokens."
        )
    return asked


def _available(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else host_available()


def _describe(
    checkpoint: Checkpoint, args: Any, context: int, dtype: str, device: torch.device,
    mtp: MtpInfo | None,
) -> ModelInfo:  # fmt: skip
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    threads = cpu.reason() if dtype == STORED else torch.get_num_threads()
    traits = f"{chip}|{device.type}|{threads}|{dtype}|{torch.__version__}"
    digest = hashlib.sha256(checkpoint.chat_template.encode()).hexdigest()[:16]
    return ModelInfo(
        name=checkpoint.name,
        recipe=checkpoint.architecture,
        fingerprint=checkpoint.fingerprint,
        template_digest=digest,
        parameters=recipe_for(checkpoint.architecture).parameters(args),
        vocabulary=args.vocab_size,
        context=context,
        layers=args.num_hidden_layers,
        dtype=dtype,
        device=device.type,
        device_fingerprint=hashlib.sha256(
            f"{traits}|{checkpoint.fingerprint}".encode()
        ).hexdigest()[:16],
        recommended=checkpoint.recommended,
        mtp=mtp,
    )


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
