"""The actors of one run, built from its flags."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from contract.journal import teller
from contract.progress import PhaseFile
from trainer.algorithms import batching
from trainer.algorithms.importance_sampling import CorrectionSettings
from trainer.algorithms.losses import CriticObjective, PolicyObjective
from trainer.cluster.restarts import RestartBudget
from trainer.cluster.worker_group import Launcher, WorkerGroup
from trainer.config import reward_models
from trainer.config.config import Config
from trainer.models.settings import LoRASettings, ModelSettings, RewardSettings, Sharding
from trainer.rollout.engine import EngineSettings, VLLMSettings
from trainer.rollout.engine_pool import EnginePool, Patience
from trainer.types import LostWorkerError, Measured, Metrics
from trainer.workers.protocols import Critic, Learner, Policy, Reference, RewardModel
from trainer.workers.settings import LearnerSettings, Schedule

ENGINES = {
    "auto": "trainer.rollout.hf_engine.engine:HFEngine",
    "hf": "trainer.rollout.hf_engine.engine:HFEngine",
    "vllm": "trainer.rollout.vllm_engine:VLLMEngine",
}
"""`trainer.run.choose_engine` replaces `auto`. Without it, `auto` means transformers."""


@dataclass(frozen=True, slots=True)
class Team:
    policy: WorkerGroup[Policy]
    critic: WorkerGroup[Critic] | None
    """None where the advantages need no values."""
    reference: WorkerGroup[Reference] | None
    """None where no KL is wanted."""
    engines: EnginePool
    restarts: RestartBudget
    """Restarts of processes of any role."""
    reward: WorkerGroup[RewardModel] | None = None
    """None where the rewards come from elsewhere."""

    @property
    def learners(self) -> dict[str, WorkerGroup[Learner]]:
        """Role → what a checkpoint holds."""
        critic: dict[str, WorkerGroup[Learner]] = {"critic": self.critic} if self.critic else {}
        return {"policy": self.policy, **critic}


def _policy(config: Config, updates: int) -> LearnerSettings:
    return replace(
        _learner(config, config.pretrain, config.aggregation, _policy_schedule(config, updates)),
        ema_beta=config.ema_beta if config.enable_ema else None,
        sync_port=config.vllm_sync_port,
    )


def _policy_objective(config: Config) -> PolicyObjective:
    return PolicyObjective(
        clip_range=config.clip_range,
        loss_type=config.policy_loss_type,
        dual_clip=config.dual_clip,
        kl_estimator=config.kl_estimator,
        kl_unbiased_gradient=config.kl_unbiased_gradient,
        entropy_coef=config.entropy_loss_coef,
        correction=CorrectionSettings(
            level=config.is_correction_level,
            mode=config.is_correction_mode,
            gating=config.is_correction_gating,
            threshold=config.correction_bounds,
        ),
    )


def _critic(config: Config, updates: int) -> LearnerSettings:
    return _learner(
        config,
        config.critic_pretrain or config.pretrain,
        "token",
        _critic_schedule(config, updates),
    )


def _engine(config: Config) -> EngineSettings:
    return EngineSettings(
        model=config.pretrain,
        add_special_tokens=not config.apply_chat_template,
        prompt_max_len=config.prompt_max_len,
        generate_max_len=config.generate_max_len,
        mixed_precision=config.mixed_precision,
        deterministic=config.full_determinism,
        slots=config.micro_rollout_batch_size,
        top_p=config.top_p,
        vllm=VLLMSettings(
            tensor_parallel_size=config.vllm_tensor_parallel_size,
            gpu_memory_utilization=config.vllm_gpu_memory_utilization,
            enable_prefix_caching=config.enable_prefix_caching,
            enforce_eager=config.enforce_eager,
            enable_sleep=config.vllm_enable_sleep,
            sync_backend=config.vllm_sync_backend,
        ),
    )


def assemble(config: Config, total_steps: int, launcher: Launcher) -> Team:
    """Start every actor; they load their models at the same time, while this returns."""
    updates = total_steps * config.updates_per_step
    restarts = RestartBudget(config.max_repairs)
    policy = _policy(config, updates)
    launch = launcher.launch_ranks
    return Team(
        launch(
            "policy",
            "trainer.workers.policy:PolicyActor",
            config.policy_ranks,
            policy,
            _policy_objective(config),
        ),
        launch(
            "critic",
            "trainer.workers.critic:CriticActor",
            config.critic_ranks,
            _critic(config, updates),
            CriticObjective(
                value_clip=config.value_clip, value_head_prefix=config.value_head_prefix
            ),
        )
        if config.has_critic
        else None,
        launch(
            "reference",
            "trainer.workers.reference:ReferenceActor",
            config.reference_ranks,
            replace(policy.model, offload=config.ref_reward_offload),
            policy.sharding,
        )
        if config.has_reference
        else None,
        EnginePool(
            launcher.launch(
                "engine", ENGINES[config.rollout_engine], config.vllm_num_engines, _engine(config)
            ),
            tell=teller(config.files.journal),
            phase=PhaseFile(config.files.phase),
            patience=Patience(
                life=min(Patience().life, config.dist_timeout / 3),
                restart_eagerly=not config.vllm_enable_sleep,
            ),
            restarts=restarts,
        ),
        restarts,
        _reward(config, launcher),
    )


def _reward(config: Config, launcher: Launcher) -> WorkerGroup[RewardModel] | None:
    if not config.has_reward_model:
        return None
    settings = RewardSettings(
        models=reward_models.names(config),
        mixed_precision=config.mixed_precision,
        micro_batch_size=config.micro_rollout_batch_size,
        deterministic=config.full_determinism,
        offload=config.ref_reward_offload,
        attention=config.attn_implementation,
        value_head_prefix=config.value_head_prefix,
    )
    ranks = config.reward_num_nodes * config.reward_num_gpus_per_node
    return launcher.launch("reward", "trainer.workers.reward:RewardActor", ranks, settings)


def _policy_schedule(config: Config, updates: int) -> Schedule:
    return Schedule(
        learning_rate=config.actor_learning_rate,
        lr_scheduler=config.lr_scheduler,
        lr_warmup_ratio=config.lr_warmup_ratio,
        min_lr_ratio=config.min_lr_ratio,
        updates=updates,
        adam_betas=config.adam_betas,
        adam_eps=config.adam_eps,
        l2=config.l2,
        max_norm=config.max_norm,
    )


def _critic_schedule(config: Config, updates: int) -> Schedule:
    return Schedule(
        learning_rate=config.critic_learning_rate,
        lr_scheduler=config.critic_lr_scheduler,
        lr_warmup_ratio=config.critic_lr_warmup_ratio,
        min_lr_ratio=config.critic_min_lr_ratio,
        updates=updates,
        adam_betas=config.critic_adam_betas,
        adam_eps=config.critic_adam_eps,
        l2=config.critic_l2,
        max_norm=config.critic_max_norm,
    )


def _lora(config: Config) -> LoRASettings | None:
    if not config.lora_rank:
        return None
    return LoRASettings(
        rank=config.lora_rank,
        alpha=config.lora_alpha,
        dropout=config.lora_dropout,
        target_modules=config.target_modules,
    )


def _learner(config: Config, model: str, aggregation: str, schedule: Schedule) -> LearnerSettings:
    return LearnerSettings(
        model=ModelSettings(
            model=model,
            mixed_precision=config.mixed_precision,
            deterministic=config.full_determinism,
            micro_batch_size=config.micro_rollout_batch_size,
            temperature=config.temperature,
            max_tokens=config.scoring_tokens if config.use_dynamic_batch else None,
            packing=config.packing_samples,
            attention=config.attn_implementation,
            at_once=config.scoring_at_once,
        ),
        schedule=schedule,
        train_batch_size=config.train_batch_size,
        micro_train_batch_size=config.micro_train_batch_size,
        max_tokens=config.train_max_tokens_per_gpu if config.use_dynamic_batch else None,
        loss_aggregation=aggregation,
        longest=config.generate_max_len,
        max_epochs=config.max_epochs,
        seed=config.seed,
        gradient_checkpointing=config.gradient_checkpointing,
        at_once=config.training_at_once,
        lora=_lora(config),
        sharding=Sharding(
            zero_stage=config.zero_stage,
            adam_offload=config.adam_offload,
            zpg=config.zpg,
            overlap_comm=config.overlap_comm,
            grad_accum_dtype=config.grad_accum_dtype,
            sleep=config.deepspeed_enable_sleep,
        ),
    )


PEAKS_SECONDS = 0.2
"""Seconds for an answer: who is at work is not waited for, and left out."""


def peak_memory(team: Team) -> Metrics:
    """The fullest process of each role and phase, in GB; learners tell theirs with an update."""
    models: Sequence[WorkerGroup[Measured] | None] = (team.reference, team.reward)
    asked = [one for group in models if group for one in group.call_each(Measured.peaks)]
    asked += team.engines.ask(Measured.peaks).values()
    told = []
    for one in asked:
        with suppress(LostWorkerError):  # the next to need it sees to that
            told += [one.result()] if one.ready(PEAKS_SECONDS) else []
    return batching.combine_metrics(told)
