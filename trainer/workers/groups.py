"""The worker groups of a run, started from its flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from contract.journal import journal_writer
from contract.progress import PhaseFile
from trainer.algorithms import batching
from trainer.algorithms.objectives import CriticObjective, PolicyObjective
from trainer.cluster.restarts import Patience, WorkerRestartBudget
from trainer.cluster.worker_group import Kept, Launcher, Pending, WorkerGroup
from trainer.config import reward_models
from trainer.config.config import Config
from trainer.config.layout import Role
from trainer.models.settings import ModelSettings, RewardSettings
from trainer.rollout.engine import EngineSettings
from trainer.rollout.engine_pool import EnginePool
from trainer.types import LostWorkerError, Measured, Metrics
from trainer.workers.protocols import Critic, Learner, Policy, Reference, RewardModel
from trainer.workers.settings import LearnerSettings

W = TypeVar("W")
T = TypeVar("T")
P = ParamSpec("P")

ENGINES = {
    "auto": "trainer.rollout.hf_engine.engine:HFEngine",
    "hf": "trainer.rollout.hf_engine.engine:HFEngine",
    "vllm": "trainer.rollout.vllm_engine:VLLMEngine",
}
"""`trainer.training.run.choose_engine` replaces `auto`. Without it, `auto` means transformers."""


class Turns:
    """Calls models so that of those on the same GPUs one computes at a time."""

    def __init__(self, pools: Mapping[str, str]) -> None:
        """`pools`: role → the GPUs that it shares."""
        self._pools = pools
        self._newest: dict[str, Pending[list[Any]]] = {}

    def call(
        self,
        group: WorkerGroup[W],
        method: Callable[Concatenate[W, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[list[T]]:
        """Call all ranks of a model, after the model before it on the same GPUs."""
        pool = self._pools.get(group.role, group.role)
        pending = group.call_ranks_after(self._newest.get(pool), method, *args, **kwargs)
        self._newest[pool] = pending
        return pending

    def call_keeping(
        self,
        group: WorkerGroup[W],
        items: int,
        method: Callable[Concatenate[W, P], list[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Kept[T]:
        """Like `call`, but each rank's result, a list of `items`, stays where it is made."""
        pool = self._pools.get(group.role, group.role)
        kept = group.call_ranks_keeping(self._newest.get(pool), items, method, *args, **kwargs)
        self._newest[pool] = kept.ended
        return kept


@dataclass(frozen=True, slots=True)
class WorkerGroups:
    policy: WorkerGroup[Policy]
    critic: WorkerGroup[Critic] | None
    """None if the advantages need no values."""
    reference: WorkerGroup[Reference] | None
    """None if --init_kl_coef is 0."""
    engines: EnginePool
    restarts: WorkerRestartBudget
    """Restarts of processes of any role."""
    reward: WorkerGroup[RewardModel] | None = None
    """None if no reward model gives the rewards."""
    pools: Mapping[str, str] = field(default_factory=dict)
    """See `Launcher.pools`."""

    def turns(self) -> Turns:
        """Return what orders the next calls of models that share GPUs."""
        return Turns(self.pools)

    @property
    def learners(self) -> dict[str, WorkerGroup[Learner]]:
        """Role → group of the models that a checkpoint has."""
        critic: dict[str, WorkerGroup[Learner]] = {Role.CRITIC: self.critic} if self.critic else {}
        return {Role.POLICY: self.policy, **critic}


def _policy(config: Config, updates: int) -> LearnerSettings:
    return replace(
        _learner(config, config.pretrain, updates),
        freeze_visual_encoder=config.freeze_visual_encoder,
        loss_aggregation=config.loss.policy_aggregation,
        sync_port=config.vllm.sync_port,
    )


def _critic(config: Config, updates: int) -> LearnerSettings:
    learner = _learner(config, config.critic_pretrain or config.pretrain, updates)
    train = replace(config.train, enable_ema=False)  # the average is of the policy alone
    return replace(learner, optimizer=config.critic_optimizer, train=train)


def _engine(config: Config) -> EngineSettings:
    return EngineSettings(
        model=config.pretrain,
        add_special_tokens=not config.renders_chat,
        prompt_max_len=config.prompt_max_len,
        max_len=config.longest_sample,
        sampling=config.sampling,
        mixed_precision=config.mixed_precision,
        deterministic=config.train.full_determinism,
        trust_remote_code=config.trust_remote_code,
        slots=config.micro_rollout_batch_size,
        weight_check_steps=config.train.weight_check_steps,
        max_images=config.max_images_per_prompt if config.sees_images else None,
        vllm=config.vllm,
    )


def assemble(config: Config, total_steps: int, launcher: Launcher) -> WorkerGroups:
    """Start all workers. They load their models in parallel, after this returns.

    Engines that sleep have loaded theirs when this returns: an engine counts the GPU's free memory
    while it loads, and sleeps before other models load.
    """
    updates = total_steps * config.updates_per_step
    restarts = WorkerRestartBudget(config.max_repairs)
    engines = _engines(config, launcher, restarts)
    if config.vllm.enable_sleep:
        engines.wait_started()
    policy = _policy(config, updates)
    launch = launcher.launch_ranks
    return WorkerGroups(
        launch(
            Role.POLICY,
            "trainer.workers.policy:PolicyActor",
            config.policy_ranks,
            policy,
            PolicyObjective.of(config),
        ),
        launch(
            Role.CRITIC,
            "trainer.workers.critic:CriticActor",
            config.critic_ranks,
            _critic(config, updates),
            CriticObjective(config.loss, config.value_head_prefix),
        )
        if config.has_critic
        else None,
        launch(
            Role.REFERENCE,
            "trainer.workers.reference:ReferenceActor",
            config.reference_ranks,
            replace(policy.model, offload=config.ref_reward_offload),
            policy.sharding,
        )
        if config.kl.has_reference
        else None,
        engines,
        restarts,
        _reward(config, launcher),
        launcher.pools,
    )


def _engines(config: Config, launcher: Launcher, restarts: WorkerRestartBudget) -> EnginePool:
    return EnginePool(
        launcher.launch(
            Role.ENGINE,
            ENGINES[config.rollout_engine],
            config.vllm_num_engines,
            _engine(config),
        ),
        tell=journal_writer(config.files.journal),
        phase=PhaseFile(config.files.phase),
        patience=Patience(
            life=min(Patience().life, config.dist_timeout / 3),
            restart_eagerly=not config.vllm.enable_sleep,
        ),
        restarts=restarts,
    )


def _reward(config: Config, launcher: Launcher) -> WorkerGroup[RewardModel] | None:
    if not config.has_reward_model:
        return None
    settings = RewardSettings(
        models=reward_models.names(config),
        mixed_precision=config.mixed_precision,
        micro_batch_size=config.micro_rollout_batch_size,
        deterministic=config.train.full_determinism,
        trust_remote_code=config.trust_remote_code,
        offload=config.ref_reward_offload,
        shares_gpu=config.vllm.enable_sleep,
        attention=config.attn_implementation,
        value_head_prefix=config.value_head_prefix,
    )
    ranks = config.reward_num_nodes * config.reward_num_gpus_per_node
    return launcher.launch(Role.REWARD, "trainer.workers.reward:RewardActor", ranks, settings)


def _learner(config: Config, model: str, updates: int) -> LearnerSettings:
    return LearnerSettings(
        model=ModelSettings(
            model=model,
            mixed_precision=config.mixed_precision,
            deterministic=config.train.full_determinism,
            trust_remote_code=config.trust_remote_code,
            micro_batch_size=config.micro_rollout_batch_size,
            temperature=config.sampling.temperature,
            max_tokens=config.scoring_tokens if config.train.use_dynamic_batch else None,
            packing=config.packing_samples,
            longest=config.longest_sample,
            sharing=config.ring_attn_size,
            attention=config.attn_implementation,
            liger=config.use_liger_kernel,
            concurrent_models=config.concurrent_scoring,
            shares_gpu=config.vllm.enable_sleep,
        ),
        optimizer=config.policy_optimizer,
        train=config.train,
        updates=updates,
        loss_aggregation="token",
        longest=config.sampling.max_new_tokens,
        gradient_checkpointing=config.gradient_checkpointing,
        concurrent_models=config.concurrent_training,
        lora=config.lora,
        sharding=config.sharding,
    )


PEAKS_SECONDS = 0.2
"""Longest wait for an answer, in seconds; a busy process is left out."""


def peak_memory(workers: WorkerGroups) -> Metrics:
    """Return the peak memory of each role and phase, in GB. Learners report theirs in `update`."""
    models: Sequence[WorkerGroup[Measured] | None] = (workers.reference, workers.reward)
    pending = [call for group in models if group for call in group.call_each(Measured.peaks)]
    pending += workers.engines.ask(Measured.peaks).values()
    peaks = []
    for call in pending:
        with suppress(LostWorkerError):  # the next call to the process recovers from its loss
            peaks += [call.result()] if call.ready(PEAKS_SECONDS) else []
    return batching.combine_metrics(peaks)
