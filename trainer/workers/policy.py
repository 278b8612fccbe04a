"""The policy: the model that reinforcement learning trains."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer

from contract.manifest import WrittenFile
from trainer.algorithms import estimates, losses
from trainer.algorithms.division import Part
from trainer.algorithms.estimates import Outputs, Statistics, Worth
from trainer.algorithms.losses import LossPart, PolicyInputs
from trainer.algorithms.objectives import PolicyObjective
from trainer.algorithms.seeds import derive
from trainer.checkpoint.protocol import Directory
from trainer.cluster import shared_memory
from trainer.cluster.memory_estimate import LENT_BUCKETS
from trainer.config.layout import Role
from trainer.models import hf_export as export
from trainer.models import lora, precision, pretrained, vision, zero3
from trainer.models.balance import balance_of
from trainer.models.causal_lm import LogProbModel, backbone_of
from trainer.models.gpu_memory import Peaks
from trainer.models.liger import use_liger
from trainer.models.loading import load_causal_lm, prepare_process
from trainer.models.sequence_parallel import sharing_ranks
from trainer.types import ALONE, Experience, FloatArray, Metrics, Rank
from trainer.weight_sync import cuda_ipc
from trainer.weight_sync.cuda_ipc import IpcSender
from trainer.weight_sync.messages import Bucket, BucketSpec, GroupRendezvous, IpcHandle, Member
from trainer.weight_sync.nccl import NcclSender
from trainer.weight_sync.packing import WeightSource
from trainer.weight_sync.shared_memory import SharedMemorySender
from trainer.workers.learner import LearnerActor, LearnerEngine, LearnerModel, LossBatch
from trainer.workers.settings import LearnerSettings


class PolicyActor(LearnerActor):
    def __init__(
        self, settings: LearnerSettings, objective: PolicyObjective, rank: Rank = ALONE
    ) -> None:
        rank = replace(rank, sharing=settings.model.sharing)
        device = prepare_process(
            deterministic=settings.model.deterministic,
            trust_remote_code=settings.model.trust_remote_code,
        )
        peaks = Peaks(shares_gpu=settings.model.shares_gpu)
        self._source = settings.model.model
        dtype = torch.bfloat16 if settings.rounds_at_load else torch.float32
        with peaks.phase("load"):
            with zero3.split(settings.sharding, rank):
                made = settings.model
                self._model = load_causal_lm(
                    self._source, dtype, made.attention, longest=made.longest
                )
            if settings.model.liger:
                use_liger(self._model, device)
            if settings.rounds_at_load:
                precision.to_bf16(self._model)
            self._model.to(device)
            if settings.gradient_checkpointing:
                self._model.gradient_checkpointing_enable()
            if settings.lora.rank:
                lora.adapt(self._model, settings.lora, derive(settings.train.seed, "lora"))
            if settings.freeze_visual_encoder:
                vision.freeze(self._model)
            self._model.eval()  # also the new adapters, which have dropout
            self._scorer = LogProbModel(self._model, device, settings.model, sharing_ranks(rank))
        if rank.leads:
            print(f"{Role.POLICY}: {self._scorer.attention}", flush=True)
        limits = self._scorer.limits(
            settings.train.micro_train_batch_size, settings.train.max_tokens
        )
        trained = LearnerModel(
            role=Role.POLICY, module=self._scorer, model=self._model, limits=limits
        )
        self._engine = LearnerEngine(trained, settings, rank, peaks)
        self._objective = objective
        routed = backbone_of(self._model) or self._model
        self._balance = balance_of(routed, objective.loss.aux_loss_coef, Role.POLICY)
        self._rank = rank
        self._held: dict[str, Tensor] = {}
        """A copy of the weights, for `export_held`."""
        published = torch.bfloat16 if settings.model.mixed_precision else None
        self._outbox = SharedMemorySender(published, settings.sync_port)
        self._offered = WeightSource(self._model, published)
        self._broadcaster = NcclSender(settings.sync_port)
        self._lender: IpcSender | None = None
        if rank.leads and _is_offered_as_it_is(settings, device):
            self._outbox.adopt(self._model)

    def log_probs(self, part: Part) -> list[FloatArray]:
        with self._engine.onloaded("forward") as run:
            return part.by_chunk(self._scorer.log_probs(part, run))

    def statistics(self, part: Part, outputs: Outputs, worth: Worth) -> Statistics:
        return estimates.statistics(part, outputs, worth)

    def _trained(self, part: Part, experience: Experience, step: int) -> Metrics:
        with self._engine.onloaded("update") as run:
            metrics = self._engine.train_step(part, experience, step, partial(self._loss, run))
        return {"actor_lr" if name == "lr" else name: value for name, value in metrics.items()}

    def _loss(self, run: Callable[..., Any], micro: LossBatch) -> LossPart:
        part, actions = micro.experience, micro.experience.sequences.actions

        def tensor(array: FloatArray | None) -> Tensor | None:
            return None if array is None else self._scorer.tensor(array)

        wants_entropy = self._objective.loss.entropy_loss_coef is not None
        with self._balance.recorded() if self._balance else nullcontext():
            log_probs, entropy = run(part.sequences, entropy=wants_entropy)
        old = tensor(part.old_log_probs)
        inputs = PolicyInputs(
            log_probs=log_probs,
            old_log_probs=log_probs.detach() if old is None else old,
            advantages=self._scorer.tensor(part.advantages),
            weights=self._scorer.tensor(micro.weights),
            rows=self._scorer.tensor(np.repeat(np.arange(len(actions)), actions)),
            metric_weight=micro.metric_weight,
            rollout_log_probs=tensor(part.sequences.rollout_log_probs),
            ref_log_probs=tensor(part.ref_log_probs),
            kl_coef=part.kl_coef,
            entropy=entropy,
        )
        loss = losses.policy_loss(inputs, self._objective)
        return self._balance.added(loss, micro.share) if self._balance else loss

    def node(self) -> str:
        return shared_memory.node()

    def offer(self) -> list[BucketSpec]:
        merged = self._merged()  # gathered from all ranks; only rank 0 offers them
        buffers = {name for name, _ in self._model.named_buffers()}
        return self._outbox.offer(merged, buffers=buffers) if self._rank.leads else []

    def stage(self, bucket: BucketSpec, *, to_other_nodes: bool = False) -> Bucket:
        return self._outbox.stage(bucket, to_other_nodes=to_other_nodes)

    def meet(self, members: tuple[Member, ...]) -> GroupRendezvous | None:
        return self._broadcaster.meet(members)

    def gather(self, seconds: float) -> None:
        self._broadcaster.gather(seconds)

    def announce(self) -> list[BucketSpec]:
        self._engine.onload()  # until `withdraw`, not once for each bucket
        return self._offered.buckets()

    def broadcast(self, bucket: BucketSpec, seconds: float) -> None:
        with self._offered.whole(bucket) as tensors:
            if self._rank.leads:
                self._broadcaster.send(tensors, seconds)

    def gpu(self) -> str:
        return cuda_ipc.gpu()

    def lend(self, bucket: BucketSpec) -> IpcHandle:
        if self._lender is None:
            buffers = min(LENT_BUCKETS, self._offered.count)
            self._lender = IpcSender(self._offered.largest, buffers)
        with self._offered.whole(bucket) as tensors:
            return self._lender.lend(bucket, tensors)

    def withdraw(self) -> None:
        self._outbox.withdraw()
        if self._lender is not None:
            self._lender.end()
            self._lender = None
        self._engine.offload()

    def _merged(self) -> dict[str, Tensor]:
        """Return the weights as the engines need them, with adapters merged."""
        with self._engine.onloaded():
            return lora.merged(self._model, self._engine.weights())

    def export(self, directory: Directory) -> None:
        with self._engine.onloaded():
            result = lora.merged(self._model, self._engine.result())
            if self._rank.leads:
                self._write(result, directory)

    def hold(self) -> None:
        with self._engine.onloaded():
            result = lora.merged(self._model, self._engine.result())
            if self._rank.leads:
                self._held = self._engine.copied(result)

    def export_held(self, directory: Directory) -> list[WrittenFile]:
        if not self._rank.leads:
            return []
        held, self._held = self._held, {}
        return self._write(held, directory)

    def _write(self, weights: dict[str, Tensor], directory: Directory) -> list[WrittenFile]:
        from trainer.checkpoint import head_files  # imports Ray

        tokenizer: Any = pretrained.load(AutoTokenizer, self._source)
        if beside := vision.processor_files(self._model, self._source):
            tokenizer = vision.TokenizerWithFiles(tokenizer, beside)
        with head_files.writing(directory) as out:
            files = export.write(self._model, tokenizer, out.path, weights=weights)
            out.send(files, replace=True)
        return files


def _is_offered_as_it_is(settings: LearnerSettings, device: torch.device) -> bool:
    """Whether engines read the trained tensors themselves: whole, in fp32, without adapters."""
    whole = settings.sharding.zero_stage == 0 and not settings.lora.rank
    return whole and device.type == "cpu" and not settings.model.mixed_precision
