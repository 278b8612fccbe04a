"""OpenRLHF's own functions on numpy arrays; [B, T] arrays are aligned with the action mask.

Its trainers' methods are called on real objects of their classes, with the options that the
method reads. Nothing of what is called is replaced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from absent import empty_modules
from numpy.typing import NDArray
from torch import Tensor
from transformers.utils import is_peft_available

PACKAGES = ("deepspeed", "flash_attn", "peft", "pylatexenc", "torchdata", "vllm")

is_peft_available()  # transformers remembers the answer, and TRL asks it: it must be the true one

with empty_modules(*PACKAGES):
    from openrlhf.models import utils
    from openrlhf.models.loss import DPOLoss, LogExpLoss, PairWiseLoss, PolicyLoss, ValueLoss
    from openrlhf.models.model import get_llm_for_sequence_regression
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
    from openrlhf.trainer.ppo_utils.kl_controller import AdaptiveKLController, FixedKLController
    from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from openrlhf.utils.deepspeed import deepspeed as strategy_module
    from openrlhf.utils.loss_utils import iter_grad_accum_global_norm

Array = NDArray[np.generic]
Answer = dict[str, Any]


def tensors(arrays: dict[str, Array]) -> dict[str, Tensor]:
    return {name: torch.tensor(array) for name, array in arrays.items()}


def leaf(array: Array) -> Tensor:
    return torch.tensor(array).requires_grad_()


def gradient(value: Tensor, of: Tensor) -> Array:
    return torch.autograd.grad(value, of, retain_graph=True)[0].numpy()


def policy_loss(log_probs: Array, arrays: dict[str, Array], settings: dict[str, Any]) -> Answer:
    """PolicyLoss(**settings).forward of one batch, with its gradient and metrics."""
    now = leaf(log_probs)
    value, clip_ratio, ppo_kl, vllm_kl, filtered = PolicyLoss(**settings)(now, **tensors(arrays))
    metrics = {"ppo_clip_ratio": clip_ratio, "ppo_kl": ppo_kl}
    if vllm_kl is not None:
        metrics |= {"vllm_kl": vllm_kl, "is_filter_ratio": filtered}
    return {
        "value": value.item(),
        "gradient": gradient(value, now),
        "metrics": {name: metric.item() for name, metric in metrics.items()},
    }


def value_loss(values: Array, arrays: dict[str, Array], settings: dict[str, Any]) -> Answer:
    now = leaf(values)
    value = ValueLoss(**settings)(now, **tensors(arrays))
    return {"value": value.item(), "gradient": gradient(value, now)}


def pair_loss(arrays: dict[str, Array], settings: dict[str, Any]) -> float:
    """The loss of a reward model on the rewards of pairs, with a margin if `arrays` has one."""
    losses = {"sigmoid": PairWiseLoss, "logexp": LogExpLoss}
    given = tensors(arrays)
    loss = losses[settings["loss"]]()
    return float(loss(given["chosen"], given["rejected"], given.get("margin")))


def dpo_loss(arrays: dict[str, Array], settings: dict[str, Any]) -> float:
    """DPOLoss(**settings) of the summed log-probabilities of answers."""
    loss, _, _ = DPOLoss(**settings)(**tensors(arrays))
    return float(loss)


def policy_step(
    log_probs: Array, entropy: Array, arrays: dict[str, Array], settings: dict[str, Any]
) -> Answer:
    """The gradient that ActorPPOTrainer.training_step gives to a model with these outputs."""
    now, spread = leaf(log_probs), leaf(entropy)
    experience = Experience(sequences=torch.zeros(log_probs.shape), **tensors(arrays))
    loss, _ = training_step(now, spread, experience, settings)
    return {"value": loss.item(), "gradient": gradient(loss, now)} | {
        "entropy_gradient": gradient(loss, spread) if settings["entropy_coef"] else None
    }


def kl_of_step(
    log_probs: Array, reference: Array, actions: Array, options: dict[str, Any]
) -> float:
    """What PPOTrainer.train_step gives to the controller: `status["kl"]` of one micro-batch.

    With the KL in the reward, RemoteExperienceMaker.make_experience has put the sequences' means
    into `info`, by these two functions; with the KL in the loss, training_step puts it there.
    """
    now, mask = leaf(log_probs), torch.tensor(actions)
    estimate = utils.compute_approx_kl(
        now.detach(), torch.tensor(reference), kl_estimator=options["estimator"]
    )
    experience = Experience(
        sequences=torch.zeros(log_probs.shape),
        action_log_probs=now.detach(),
        base_action_log_probs=torch.tensor(reference),
        advantages=torch.zeros(log_probs.shape),
        action_mask=mask,
        info={"kl": utils.masked_mean(estimate, mask, dim=-1)},
    )
    kl = {"init_coef": 0.1, "unbiased_gradient": False} | options
    settings = {"policy_loss": {}, "entropy_coef": None, "kl_coef": 0.1, "kl": kl}
    _, answer = training_step(now, torch.zeros_like(now), experience, settings)
    # As ppo_train merges it: a mean over samples where there is one for each, else as it is.
    return float(answer["metrics"]["kl"].mean())


def training_step(
    now: Tensor, spread: Tensor, experience: Experience, settings: dict[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """The loss of ActorPPOTrainer.training_step, and what it returns."""
    trainer = ActorPPOTrainer.__new__(ActorPPOTrainer)  # its __init__ needs process groups
    trainer.args = SimpleNamespace(
        train=SimpleNamespace(dynamic_batch_enable=False),
        actor=SimpleNamespace(entropy_coef=settings["entropy_coef"]),
        algo=SimpleNamespace(kl=SimpleNamespace(**settings["kl"])),
    )
    trainer.actor = Outputs(now, SimpleNamespace(entropy=spread))
    trainer.actor_loss_fn = PolicyLoss(**settings["policy_loss"])
    trainer.strategy = Recorder()
    trainer.replay_buffer = trainer.actor_optim = trainer.ema_model = None
    trainer.aux_loss = False
    trainer.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
    answer = trainer.training_step(experience, settings["kl_coef"], step=0)
    return trainer.strategy.loss, answer


class Outputs(torch.nn.Module):
    """A model whose outputs are known."""

    def __init__(self, log_probs: Tensor, output: SimpleNamespace) -> None:
        super().__init__()
        self.outputs = log_probs, output

    def forward(self, *_: Any, **__: Any) -> tuple[Tensor, SimpleNamespace]:
        return self.outputs


class Recorder:
    """Keeps the loss that it is given to optimise."""

    ring_attn_group = None

    def backward(self, loss: Tensor, *_: Any) -> None:
        self.loss = loss

    def optimizer_step(self, *_: Any, **__: Any) -> None: ...

    def get_grad_norm(self, _: Any) -> float:
        return 0.0


def gradients_of_a_cut_step(
    log_probs: Array, arrays: dict[str, Array], settings: dict[str, Any], cuts: Sequence[slice]
) -> Array:
    """What the micro-batches `cuts` of one optimizer step add up to, as DeepSpeed scales them."""
    now = leaf(log_probs)
    whole = tensors(arrays)
    micro_batches = iter_grad_accum_global_norm(
        cuts, None, len(cuts), lambda cut: whole["action_mask"][cut]
    )
    total = torch.zeros(())
    for cut, normalisers in micro_batches:
        part = {name: tensor[cut] for name, tensor in whole.items()}
        loss, *_ = PolicyLoss(**settings)(now[cut], **part, **normalisers)
        total = total + loss / len(cuts)
    return gradient(total, now)


def kl(log_probs: Array, reference: Array, options: dict[str, Any]) -> Answer:
    """compute_approx_kl [B, T] and the gradient of its sum."""
    now = leaf(log_probs)
    estimate = utils.compute_approx_kl(now, torch.tensor(reference), **options)
    return {"value": estimate.detach().numpy(), "gradient": gradient(estimate.sum(), now)}


def kl_coefficients(
    initial: float, target: float | None, horizon: int, kls: Sequence[float], samples: int
) -> list[float]:
    """The coefficient after each of `kls`."""
    controller = (
        FixedKLController(initial)
        if target is None
        else AdaptiveKLController(initial, target, horizon)
    )
    values = []
    for kl in kls:
        controller.update(kl, samples)
        values.append(float(controller.value))
    return values


class Preparing(DeepspeedStrategy):
    """Prepares a model without process groups, and without DeepSpeed's own settings."""

    ds_tensor_parallel_size, deepcompile = 1, False

    def __init__(self) -> None: ...

    def get_ds_train_config(self, **_: Any) -> dict[str, Any]:
        return {}

    def _get_model_parameters(self, model: Any, **_: Any) -> Any:
        return model, list(model.parameters())


def learning_rates(updates: int, settings: dict[str, Any]) -> list[float]:
    """Of each update, by the scheduler that _ds_init_train_model hands to DeepSpeed."""
    strategy_module.deepspeed = SimpleNamespace(
        initialize=lambda **given: (given["model"], None, None, given["lr_scheduler"])
    )
    adam = {"lr": 1.0, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    cfg = {"optim": "adam", "adam": adam, "scheduler_steps": updates} | settings
    model = weight_of(np.zeros((1, 1)))
    _, _, scheduler = Preparing().prepare((model, cfg))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    schedule = scheduler(optimizer)
    rates = []
    for _ in range(updates):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


def reward_model(
    source: str, out: str, prefix: str, tokens: Array, mask: Array
) -> dict[str, Array]:
    """Give `source` a fresh head, save it as train_rm.py does, and score [B, T] `tokens`."""
    model = get_llm_for_sequence_regression(
        source,
        "reward",
        init_value_head=True,
        value_head_prefix=prefix,
        attn_implementation="eager",
    )
    model.config.value_head_prefix = prefix
    model.save_pretrained(out)
    model.config.to_json_file(Path(out) / "config.json")
    with torch.no_grad():
        rewards = model.double().eval()(torch.tensor(tokens), torch.tensor(mask))
    return {"rewards": rewards.numpy(), "head": getattr(model, prefix).weight.detach().numpy()}


def advantages(
    arrays: dict[str, Array], settings: dict[str, Any], batches: Sequence[Sequence[int]]
) -> Answer:
    """RemoteExperienceMaker.compute_advantages_and_returns of `batches` of rows; [B, T].

    The KL in the reward is what make_experience would have put there.
    """
    algo = SimpleNamespace(advantage=SimpleNamespace(**settings["advantage"]))
    args = SimpleNamespace(
        algo=algo,
        reward=SimpleNamespace(**settings["reward"]),
        rollout=SimpleNamespace(**settings["rollout"]),
    )
    maker = RemoteExperienceMaker(
        *[None] * 4, FixedKLController(settings["kl_coef"]), SimpleNamespace(args=args), None
    )
    whole = tensors(arrays)
    kl = utils.compute_approx_kl(
        whole.pop("log_probs"), whole.pop("reference"), kl_estimator=settings["kl_estimator"]
    )
    experiences = [
        Experience(
            **{name: tensor[rows] for name, tensor in whole.items()}, kl=kl[rows], index=rows
        )
        for rows in map(list, batches)
    ]
    maker.compute_advantages_and_returns(experiences)
    rows = np.concatenate(batches)
    result = {name: np.empty(kl.shape) for name in ("advantages", "returns")}
    for name, array in result.items():
        array[rows] = torch.cat([getattr(experience, name) for experience in experiences]).numpy()
    return result


def penalised(rewards: Array, lengths: Array, truncated: Array, options: dict[str, Any]) -> Array:
    """[B] rewards after apply_length_penalties."""
    experience = Experience(
        rewards=torch.tensor(rewards),
        response_length=torch.tensor(lengths),
        truncated=torch.tensor(truncated),
    )
    rollout = SimpleNamespace(max_new_tokens=options.pop("max_new_tokens"))
    apply_length_penalties(
        [experience], SimpleNamespace(reward=SimpleNamespace(**options), rollout=rollout)
    )
    shaped: Array = experience.rewards.numpy()
    return shaped


def moving_averages(updates: Sequence[Array], beta: float) -> list[Array]:
    """The average after each of `updates` of a weight, which begins with the first."""
    strategy = DeepspeedStrategy.__new__(DeepspeedStrategy)  # its __init__ needs process groups
    strategy.time_steps, strategy.accumulated_gradient = defaultdict(int), 1
    strategy.use_dynamic_batch, strategy.stage = False, 2
    average = weight_of(updates[0])
    averages = []
    for update in updates[1:]:
        strategy.moving_average(weight_of(update), average, beta)
        averages.append(average.weight.detach().numpy().copy())
    return averages


def weight_of(array: Array) -> torch.nn.Linear:
    outputs, inputs = array.shape
    module = torch.nn.Linear(inputs, outputs, bias=False)
    module.weight.data.copy_(torch.tensor(array))
    return module


def log_probs_and_entropy(
    logits: Array, labels: Array, temperature: float, shares: tuple[Array, Array]
) -> Answer:
    """[N] each, of logits [N, V] at `temperature` as Actor.forward computes them.

    The gradient is that of their sums weighted by `shares`.
    """
    plain = leaf(logits)
    scaled = plain / temperature
    log_probs = utils.log_probs_from_logits(scaled, torch.tensor(labels))
    entropy = utils.compute_entropy(scaled)
    total = log_probs @ torch.tensor(shares[0]) + entropy @ torch.tensor(shares[1])
    return {
        "log_probs": log_probs.detach().numpy(),
        "entropy": entropy.detach().numpy(),
        "gradient": gradient(total, plain),
    }
