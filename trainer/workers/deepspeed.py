"""Training with DeepSpeed: optimizer state, gradients and weights are sharded over ranks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as States
from torch import Tensor, nn

from trainer.checkpoint import state
from trainer.checkpoint.state import State
from trainer.checkpoint.tensor_parts import whole_of
from trainer.config.options.parallelism import Sharding
from trainer.models import zero3
from trainer.models.gpu_memory import HostCopies, up_to
from trainer.models.lora import trained
from trainer.models.precision import to_bf16
from trainer.models.zero3 import is_half, is_sharded, shape_of
from trainer.types import Rank, TrainingError
from trainer.workers import deepspeed_state
from trainer.workers.optimizer import adamw, restore_schedule, scheduler_of
from trainer.workers.settings import LearnerSettings
from trainer.workers.weight_check import Held

MASTERS = (States.hp_params, States.optim_states)
"""States that DeepSpeed can offload: fp32 weights, and Adam's moments."""
BUCKET = 500_000_000
"""Limit of elements that are reduced at a time: DeepSpeed's default."""

# DeepSpeed 0.19 calls torch's collectives by names that torch 2.13 renames.
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning)


class ZeRO:
    """A Strategy: ZeRO stages 1 to 3 (Rajbhandari et al. 2020, section 5)."""

    def __init__(
        self, module: nn.Module, model: nn.Module, settings: LearnerSettings, rank: Rank
    ) -> None:
        self._model = model
        self._rank = rank
        # torch's fused AdamW is fast on every device, and compiles nothing at run time.
        self._adam = adamw(model, settings.optimizer, fused=True)
        self._scheduler = scheduler_of(self._adam, settings.optimizer, settings.updates)
        if settings.model.mixed_precision and any(map(is_sharded, model.parameters())):
            to_bf16(model)  # DeepSpeed does not cast weights that were split before
        self._engine = deepspeed.initialize(
            model=module, optimizer=self._adam, config=configuration(model, settings)
        )[0]
        deepspeed_state.begin(self._engine.optimizer, self._adam)
        sharding, splits = settings.sharding, settings.sharding.zero_stage == 3
        self._sleeps = sharding.sleep and torch.cuda.is_available()
        self._asleep = False
        self._host = HostCopies()
        self._moves_masters = splits and not sharding.adam_offload
        by_us = [States.lp_params] if splits else []
        by_us += MASTERS if self._moves_masters else ()
        self._by_deepspeed = [kind for kind in States if kind not in by_us]
        """States that DeepSpeed offloads; `deepspeed_state` moves the others."""

    def run(self, *inputs: Any, **options: Any) -> Any:
        return self._engine(*inputs, **options)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over ranks, but the losses of the ranks are parts of one sum.
        self._engine.backward(loss * self._rank.world)

    def step(self, look: Callable[[float], None]) -> float:
        self._engine.step()  # computes the norm, and updates
        norm = float(self._engine.get_global_grad_norm())
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient's norm is {norm}")
        self._scheduler.step()
        return norm

    @property
    def learning_rate(self) -> float:
        return float(self._scheduler.get_last_lr()[0])

    def whole(self) -> dict[str, Tensor]:
        copies: dict[int, Tensor] = {}  # a tied tensor is gathered once
        tensors = self._model.state_dict(keep_vars=True)
        for tensor in tensors.values():
            if id(tensor) not in copies:
                copies[id(tensor)] = deepspeed_state.whole(tensor, keep=self._rank.leads)
        return {name: copies[id(tensor)] for name, tensor in tensors.items()}

    def updated(self) -> Iterator[Tensor]:
        for parameter in self._model.parameters():
            has_master = parameter.requires_grad and is_half(parameter)
            yield deepspeed_state.weights(parameter) if has_master else parameter

    def state(self) -> State:
        tensors = trained(self._model)
        buffers = {n: one for n, one in tensors.items() if not isinstance(one, nn.Parameter)}
        model = {name: buffers[name] for name in state.share(buffers, self._rank)}
        adam: dict[str, dict[str, Any]] = {}
        pieces: dict[str, state.Piece] = {}
        made = torch.tensor(self._steps()[0].item())
        parts: dict[int, deepspeed_state.Part | None] = {}  # a tied tensor has one
        for name, tensor in tensors.items():
            if name in buffers:
                continue
            is_tied = id(tensor) in parts
            part = parts.setdefault(id(tensor), deepspeed_state.part(tensor))
            if part is None:
                continue
            model[name] = part.weights
            if part.weights.shape != (shape := shape_of(tensor)):
                pieces[name] = (part.start, tuple(shape))
            if made > 0 and not is_tied:
                adam[name] = {"step": made, **part.moments}
        schedule = self._scheduler.state_dict()
        return State(model=model, adam=adam, scheduler=schedule, pieces=pieces)

    def held(self) -> Held:
        own = self.state()
        updated = [*own.model.values(), *state.moments_of(own.adam.values())]
        parameters = list(self._model.parameters())
        if not any(map(is_sharded, parameters)):
            return Held(parameters, updated)
        # hpZ's copies within a node are left out: the next forward pass makes them again.
        return Held((), [*updated, *(getattr(one, "ds_tensor", one) for one in parameters)])

    def restore(self, state: State) -> None:
        tensors = trained(self._model)
        state.check_fits(tensors)
        made = max((float(held["step"]) for held in state.adam.values()), default=0.0)
        for step in self._steps():
            step.fill_(made)
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                deepspeed_state.put(tensor, state.model[name], state.adam.get(name))
            else:
                tensor.copy_(whole_of(state.model[name]))
        restore_schedule(self._scheduler, self._adam, state.scheduler)

    def _steps(self) -> list[Tensor]:
        """Return Adam's counters of updates, one for each of its tensors."""
        return [held["step"] for held in self._adam.state.values()]

    def sleep(self) -> None:
        if self._asleep or not self._sleeps:
            return
        self._asleep = True
        self._engine.offload_states(include=self._by_deepspeed)
        deepspeed_state.move_weights(self._engine.optimizer, self._model, self._host.down)
        if self._moves_masters:
            deepspeed_state.move(self._engine.optimizer, self._adam, self._host.down)
        torch.cuda.empty_cache()

    def wake(self) -> None:
        if not self._asleep:
            return
        self._asleep = False
        up = up_to(self._engine.device)
        if self._moves_masters:
            deepspeed_state.move(self._engine.optimizer, self._adam, up)
        deepspeed_state.move_weights(self._engine.optimizer, self._model, up)
        self._engine.reload_states()
        deepspeed_state.find_moments(self._engine.optimizer)


def configuration(model: nn.Module, settings: LearnerSettings) -> dict[str, Any]:
    """Return DeepSpeed's configuration. The trainer itself splits batches."""
    sharding, bf16 = settings.sharding, settings.model.mixed_precision
    accumulated = sharding.grad_accum_dtype
    # For bf16 weights with fp32 gradients, stage 1 uses another optimizer in DeepSpeed, which
    # fails if all gradients are zero; stage 2 computes the same.
    stage = max(2, sharding.zero_stage) if bf16 and accumulated == "fp32" else sharding.zero_stage
    elements = sum(shape_of(p).numel() for p in model.parameters() if p.requires_grad)
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": settings.optimizer.max_norm,
        "bf16": {"enabled": bf16},
        "data_types": {"grad_accum_dtype": accumulated or None},
        "zero_optimization": {
            "stage": stage,
            # Off unless asked for: DeepSpeed's races were with it (its issues 5545, 7965, 8061).
            "overlap_comm": sharding.overlap_comm,
            "reduce_bucket_size": min(BUCKET, elements),
            "zero_hpz_partition_size": sharding.zpg,
            "stage3_param_persistence_threshold": _small(model),
            "offload_optimizer": {
                "device": "cpu" if sharding.adam_offload else "none",
                "pin_memory": torch.cuda.is_available(),
            },
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def frozen(module: nn.Module, sharding: Sharding, *, offload: bool) -> Any:
    """Return a DeepSpeed engine for `module`, whose weights are sharded and never trained."""
    return deepspeed.initialize(
        model=module,
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {
                **zero3.weight_settings(sharding, offload=offload),
                "stage3_param_persistence_threshold": _small(module),
            },
        },
    )[0]


def _small(model: nn.Module) -> int:
    """Return the size below which a parameter is not sharded: twice the longest vector."""
    shapes = (shape_of(parameter) for parameter in model.parameters())
    return 2 * max((shape.numel() for shape in shapes if len(shape) == 1), default=0)
