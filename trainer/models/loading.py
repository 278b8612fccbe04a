"""Loads models, and runs them over whole batches without gradients."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
)
from transformers.utils import logging as transformers_logging

from trainer.algorithms import division
from trainer.algorithms.batching import MicroBatchLimits
from trainer.algorithms.division import MicroBatch, Part
from trainer.cluster import rendezvous
from trainer.config import architecture
from trainer.models import positions, pretrained
from trainer.models.gpu_memory import keep_freed_memory, lock_pages
from trainer.types import FloatArray, IntArray, Sequences, UnfitModelError, places

log = logging.getLogger(__name__)


def prepare_process(
    *, deterministic: bool = False, huge_pages: bool = True, trust_remote_code: bool = False
) -> torch.device:
    """Set up torch in this process. Returns its device.

    `deterministic`: use GPU kernels whose results repeat to the bit. `huge_pages`: of the CPU's
    memory, for large tensors. `trust_remote_code`: run code that models bring along.
    """
    pretrained.trust(trust_remote_code)
    if deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS requires this setting
        torch.use_deterministic_algorithms(True)
    share_threads(1)
    keep_freed_memory(huge_pages=huge_pages)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def share_threads(concurrent_models: int) -> None:
    """Limit this process to its part of the threads that `concurrent_models` models share.

    The default is one thread: sums then have one order, and runs repeat to the bit. OMP_NUM_THREADS
    sets another number. More threads than CPUs would wait for each other at the end of every loop,
    which makes a step many times slower.
    """
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(max(1, threads // concurrent_models))


def load_causal_lm(
    model: str, dtype: torch.dtype, attention: str | None = None, *, longest: int | None = None
) -> Any:
    """Return the model, which may also take images.

    `longest`: most tokens of a sample, which choose the rotary frequencies of all samples; None:
    each pass chooses its own. Raises UnfitModelError for files that are unusable or lack weights,
    and for a model that reads fewer tokens.
    """
    config = _config(model)
    sees = hasattr(config, "vision_config")
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    return _loaded(kind, model, fitted(model, config, longest, attention), dtype)


def load_backbone(
    model: str, dtype: torch.dtype, attention: str | None = None, *, longest: int | None = None
) -> Any:
    """Return the model without its head. Raises UnfitModelError as `load_causal_lm` does."""
    return _loaded(AutoModel, model, fitted(model, _config(model), longest, attention), dtype)


def load_scorer(
    model: str, dtype: torch.dtype, attention: str | None = None, *, longest: int | None = None
) -> Any:
    """Return the model with one output for a text, from a language model or a reward model.

    A language model gets a new head. Raises UnfitModelError as `load_causal_lm` does.
    """
    config = fitted(model, _config(model, num_labels=1), longest, attention)
    kind = AutoModelForSequenceClassification
    return _loaded(kind, model, config, dtype, new={"score.weight"})


def fitted(model: str, config: Any, longest: int | None, attention: str | None) -> Any:
    """Return `config` with an attention that leaves nothing out, and with settled frequencies.

    `attention`: what the user asks for; None: what fits. Raises UnfitModelError.
    """
    shape = positions.shape_of(config)
    if attention and (fault := architecture.attention_fault(shape, attention)):
        raise UnfitModelError(f"--attn_implementation {attention}: {model}: {fault}")
    if longest is not None:
        if fault := architecture.positions_fault(shape, longest):
            raise UnfitModelError(f"{model}: {fault}")
        positions.settle(config, longest)
    config._attn_implementation = architecture.attention_of(shape, attention)
    return config


def _config(model: str, **changes: Any) -> Any:
    return pretrained.load(AutoConfig, model, **changes)


def _loaded(
    kind: Any,
    model: str,
    config: Any,
    dtype: torch.dtype,
    *,
    new: Set[str] = frozenset(),
) -> Any:
    """`new`: weights that the files may lack."""
    loaded, info = pretrained.load(
        kind, model, config=config, dtype=dtype, output_loading_info=True
    )
    if missing := sorted(set(info["missing_keys"]) - new):
        # transformers would draw them at random, and only warn.
        raise UnfitModelError(f"{model} lacks {len(missing)} of its weights: {some_of(missing)}")
    headless = kind in (AutoModel, AutoModelForSequenceClassification)
    warn_of_unused(model, info["unexpected_keys"], headless=headless)
    positions.freeze(loaded)
    return loaded


def warn_of_unused(model: str, unused: Iterable[str], *, headless: bool = False) -> None:
    """Warn of tensors of the files that the model has no place for, which transformers leaves out.

    `headless`: whether the files may have a head, as NAME.weight, that the model does not have.
    """
    left_out = sorted(name for name in unused if not (headless and name.count(".") == 1))
    if left_out:
        log.warning(
            "%s: %d of its tensors have no place in the model that config.json describes, and are "
            "left out: %s",
            *(model, len(left_out), some_of(left_out)),
        )


def some_of(names: Sequence[str]) -> str:
    """Return the first names, for a message that says how many there are."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


@contextmanager
def on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Keep a frozen `model` on `device` while the block runs, and in the CPU's memory otherwise.

    The CPU's memory keeps the weights meanwhile, so they are copied in one direction only. Empties
    torch's cache at the end, so that other processes can use the GPU's memory.
    """
    tensors = [*model.parameters(), *model.buffers()]
    kept = [tensor.data for tensor in tensors]
    if device.type == "cuda":
        for data in kept:
            lock_pages(data)
    for tensor, data in zip(tensors, kept, strict=True):
        tensor.data = data.to(device, non_blocking=True)
    try:
        yield
    finally:
        for tensor, data in zip(tensors, kept, strict=True):
            tensor.data = data
        torch.cuda.empty_cache()


def equal_micro_batches(
    part: Part, updates: Sequence[IntArray], limits: MicroBatchLimits
) -> list[list[MicroBatch]]:
    """Return this rank's micro-batches over each of `updates`: as many as the rank with the most.

    A rank divides its own samples alone. The ranks compare their numbers in one collective, which
    all of them must enter.
    """
    own = [division.micro_batches(part, rows, limits) for rows in updates]
    counts = [len(of_update) for of_update in own]
    most = rendezvous.largest_of_ranks(counts) if part.ranks > 1 and counts else counts
    return [division.extended(one, count) for one, count in zip(own, most, strict=True)]


@torch.no_grad()  # a tensor made in inference mode could not become a sharded weight again
def in_passes(
    compute: Callable[[Sequences], Tensor], part: Part, limits: MicroBatchLimits
) -> FloatArray:
    """Return [N] the result of `compute` for each action of the rank's samples, pass by pass."""
    sequences = part.sequences
    result = np.zeros(int(sequences.actions.sum()), dtype=np.float32)
    (passes,) = equal_micro_batches(part, [np.arange(len(part.plan.lengths))], limits)
    for micro in passes:
        if micro.idle:
            assert part.spare
            compute(part.spare)
            continue
        computed = compute(sequences.rows(micro.rows))
        result[places(sequences.actions, micro.rows)] = computed.float().cpu().numpy()
    return result
