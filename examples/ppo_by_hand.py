"""PPO by hand: one process, plain torch, and a tiny transformers model. Read it top to bottom.

    python examples/ppo_by_hand.py

trains a random Llama to write sevens, in a few seconds on a CPU. `ppo_step` computes the update of
`python -m trainer --advantage_estimator gae --lr_scheduler constant` with the flags of `Settings`:
`tests/trainer/training/test_ppo_by_hand.py` holds both to the same weights within 1e-6.

B is the number of completions, T the tokens of the longest prompt with its completion. Each array
[B, T-1] has in column t what belongs to token t + 1, which a model predicts from tokens 0 to t.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Named as the trainer's flags. Learning rates are those of a tiny model."""

    temperature: float = 1.0
    train_batch_size: int = 32  # completions of one optimizer step
    max_epochs: int = 2
    gamma: float = 1.0
    lambd: float = 0.95
    init_kl_coef: float = 0.01
    eps_clip: float = 0.2
    value_clip: float = 0.5
    actor_learning_rate: float = 2e-3
    critic_learning_rate: float = 2e-3
    adam_betas: tuple[float, float] = (0.9, 0.95)
    adam_eps: float = 1e-8
    l2: float = 0.0
    max_norm: float = 1.0


@dataclass(frozen=True)
class Batch:
    """Completions of one step, padded on the right."""

    tokens: Tensor
    """[B, T]"""
    lengths: Tensor
    """[B] tokens of prompt and completion."""
    actions: Tensor
    """[B, T-1] whether the policy chose token t + 1, not the prompt, the padding or a tool."""

    def rows(self, index: Tensor) -> Batch:
        return Batch(self.tokens[index], self.lengths[index], self.actions[index])


# 1. Models. The policy is a language model. The reference is a frozen copy of it. The critic is the
#    same transformer with one number a token in place of the vocabulary: the value V(s_t).


class Critic(nn.Module):
    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone
        size: int = backbone.config.hidden_size
        self.value_head = nn.Linear(size, 1, bias=False)
        nn.init.normal_(self.value_head.weight, std=1 / (size + 1))


def inside(batch: Batch) -> Tensor:
    """[B, T-1] whether a token is no padding: the attention mask."""
    return torch.arange(batch.tokens.shape[1] - 1) < batch.lengths[:, None] - 1


def log_probs(policy: nn.Module, batch: Batch, settings: Settings) -> Tensor:
    """[B, T-1] log π(a_t | s_t): s_t is tokens 0 to t, and a_t is token t + 1."""
    logits: Tensor = policy(input_ids=batch.tokens[:, :-1], attention_mask=inside(batch)).logits
    chosen = (logits / settings.temperature).log_softmax(-1)
    return chosen.gather(-1, batch.tokens[:, 1:, None]).squeeze(-1)


def values(critic: Critic, batch: Batch) -> Tensor:
    """[B, T-1] V(s_t), the rewards that the critic expects from a_t on."""
    found = critic.backbone(input_ids=batch.tokens[:, :-1], attention_mask=inside(batch))
    value: Tensor = critic.value_head(found.last_hidden_state)
    return value.squeeze(-1)


# 2. Rewards of tokens. A completion's score belongs to its last action. Each action costs β times
#    the KL to the reference (Ziegler et al. 2019, equation 2), estimated by k1 = log π − log π_ref
#    (Schulman, "Approximating KL divergence"). ±10 bounds one token's estimate.


def token_rewards(
    scores: Tensor, old: Tensor, reference: Tensor, actions: Tensor, settings: Settings
) -> Tensor:
    kl = (old - reference).clamp(-10, 10)
    rewards = torch.where(actions, -settings.init_kl_coef * kl, 0).double()
    columns = torch.arange(actions.shape[1])
    last = (columns * actions).argmax(1)
    rewards[torch.arange(len(scores)), last] += scores
    return rewards


# 3. Advantages: how much better than expected an action was. Generalised advantage estimation
#    (Schulman et al. 2015, equation 16):  δ_t = r_t + γ V(s_t+1) − V(s_t),  A_t = δ_t + γλ A_t+1.
#    t + 1 is the next *action*: what a tool writes between two replies is skipped. The critic
#    learns R_t = A_t + V(s_t).


def gae(
    rewards: Tensor, value: Tensor, actions: Tensor, settings: Settings
) -> tuple[Tensor, Tensor]:
    advantages = torch.zeros_like(rewards)
    next_value = next_advantage = torch.zeros(len(rewards), dtype=rewards.dtype)
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + settings.gamma * next_value - value[:, t]
        advantage = delta + settings.gamma * settings.lambd * next_advantage
        acts = actions[:, t]
        next_value = torch.where(acts, value[:, t].double(), next_value)
        next_advantage = torch.where(acts, advantage, next_advantage)
        advantages[:, t] = torch.where(acts, advantage, 0)
    return advantages, advantages + value


#    Advantages are whitened over all actions of the step, so that a learning rate fits any reward.


def whiten(advantages: Tensor, actions: Tensor) -> Tensor:
    known = advantages[actions]
    return (advantages - known.mean()) / known.var(correction=0).clamp(min=1e-8).sqrt()


# 4. Losses: means over all action tokens of an optimizer step. The policy's is the clipped
#    surrogate (Schulman et al. 2017, equation 7):  −min(ρA, clip(ρ, 1 − ε, 1 + ε) A), where
#    ρ = π / π_old. ±20 bounds one token's log-ratio, so that none overflows.


def policy_loss(
    new: Tensor, old: Tensor, advantages: Tensor, actions: Tensor, settings: Settings
) -> Tensor:
    ratio = (new - old).clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - settings.eps_clip, 1 + settings.eps_clip)
    surrogate = torch.min(ratio * advantages, clipped * advantages)
    return -surrogate[actions].mean()


#    The critic's is half of the squared error, also clipped: the larger of the errors of V and of
#    V_old + clip(V − V_old, ±ε) (as in OpenAI's baselines, ppo2).


def value_loss(
    new: Tensor, old: Tensor, returns: Tensor, actions: Tensor, settings: Settings
) -> Tensor:
    clipped = old + (new - old).clamp(-settings.value_clip, settings.value_clip)
    error = torch.max((new - returns) ** 2, (clipped - returns) ** 2)
    return 0.5 * error[actions].mean()


# 5. An update: AdamW (Loshchilov and Hutter 2019, algorithm 2) on gradients whose norm is clipped.
#    Vectors, the scales of norms, have no weight decay.


def optimizer_of(model: nn.Module, rate: float, settings: Settings) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.l2},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=settings.adam_betas, eps=settings.adam_eps)


def update(model: nn.Module, loss: Tensor, adam: torch.optim.AdamW, settings: Settings) -> None:
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), settings.max_norm)
    adam.step()


# 6. A step. π_old and V_old are of the models before the step's first update. Then each epoch
#    visits all completions in mini-batches (Schulman et al. 2017, algorithm 1).


@dataclass(frozen=True)
class Learner:
    policy: nn.Module
    reference: nn.Module
    critic: Critic
    policy_adam: torch.optim.AdamW
    critic_adam: torch.optim.AdamW

    @classmethod
    def of(cls, policy: nn.Module, critic: Critic, settings: Settings) -> Learner:
        reference = copy.deepcopy(policy).requires_grad_(False)
        rates = settings.actor_learning_rate, settings.critic_learning_rate
        adams = map(optimizer_of, (policy, critic), rates, (settings, settings))
        return cls(policy, reference, critic, *adams)


def ppo_step(
    learner: Learner,
    batch: Batch,
    scores: Tensor,
    mini_batches: Iterable[Tensor],
    settings: Settings,
) -> None:
    """Update policy and critic on a batch. `scores` [B]; `mini_batches`: rows of each update."""
    with torch.no_grad():
        old = log_probs(learner.policy, batch, settings)
        reference = log_probs(learner.reference, batch, settings)
        old_values = values(learner.critic, batch)
    rewards = token_rewards(scores, old, reference, batch.actions, settings)
    advantages, returns = gae(rewards, old_values, batch.actions, settings)
    advantages, returns = whiten(advantages, batch.actions).float(), returns.float()
    for index in mini_batches:
        rows = batch.rows(index)
        new = log_probs(learner.policy, rows, settings)
        loss = policy_loss(new, old[index], advantages[index], rows.actions, settings)
        update(learner.policy, loss, learner.policy_adam, settings)
        seen = values(learner.critic, rows)
        loss = value_loss(seen, old_values[index], returns[index], rows.actions, settings)
        update(learner.critic, loss, learner.critic_adam, settings)


# 7. Around it: completions of the policy, and their scores.

END, VOCABULARY = 10, 11  # tokens 0 to 9 are digits


@torch.no_grad()
def generate(policy: nn.Module, prompts: Tensor, longest: int, settings: Settings) -> Batch:
    """Sample a completion of each prompt [B, P], up to the end token or `longest` tokens."""
    tokens = prompts
    for _ in range(longest):
        logits = policy(input_ids=tokens).logits[:, -1] / settings.temperature
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], dim=1)
    written = tokens[:, prompts.shape[1] :]
    before_end = (written == END).cumsum(1) - (written == END).long() == 0
    lengths = prompts.shape[1] + before_end.sum(1)
    given = torch.zeros(len(prompts), prompts.shape[1] - 1, dtype=torch.bool)
    return Batch(tokens, lengths, torch.cat([given, before_end], dim=1))


def score(batch: Batch) -> Tensor:
    """[B] the share of sevens in each completion."""
    sevens = (batch.tokens[:, 1:] == 7) & batch.actions
    return sevens.sum(1) / batch.actions.sum(1)


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO by hand: a tiny model learns to write sevens")
    parser.add_argument("--max_steps", type=int, default=20)
    steps, settings = parser.parse_args().max_steps, Settings()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    policy = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes))
    critic = Critic(AutoModel.from_config(policy.config))
    critic.backbone.load_state_dict(policy.model.state_dict())  # it begins as the policy does
    learner = Learner.of(policy, critic, settings)
    for step in range(1, steps + 1):
        batch = generate(policy, torch.randint(10, (64, 3)), 8, settings)
        scores = score(batch)
        orders = [torch.randperm(len(scores)) for _ in range(settings.max_epochs)]
        mini_batches = [rows for order in orders for rows in order.split(settings.train_batch_size)]
        ppo_step(learner, batch, scores, mini_batches, settings)
        print(f"step {step}/{steps} reward {scores.mean().item():.3f}", flush=True)


if __name__ == "__main__":
    main()
