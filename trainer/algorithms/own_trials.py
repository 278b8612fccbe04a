"""Tries a user's loss and estimator before a run reserves anything: a fault then costs nothing."""

from __future__ import annotations

from functools import partial

import numpy as np

from trainer.algorithms.advantages import Completions, Rewards, own_estimate
from trainer.algorithms.own_functions import OwnFunction
from trainer.algorithms.policy_loss_formulas import PolicyTokens
from trainer.config.config import Config
from trainer.config.options.algorithm import LossSettings


def run(config: Config) -> None:
    """Call the functions of --policy_loss_type and --advantage_estimator on invented samples.

    Runs the user's files. Raises UserFormulaError for a function that fails, TrainingError for one
    that a server or the memory stops.
    """
    try_estimator(config)
    try_loss(config)


def try_estimator(config: Config) -> None:
    if own := OwnFunction.read("--advantage_estimator", config.advantage.estimator):
        _try_estimator(own, config)


def try_loss(config: Config) -> None:
    if own := OwnFunction.read("--policy_loss_type", config.loss.policy_loss_type):
        _try_loss(own, config.loss)


def _try_estimator(own: OwnFunction, config: Config) -> None:
    """Estimate a step of rewards between 0 and 1; those of the first prompt are equal."""
    shape = config.rollout_batch_size, config.n_samples_per_prompt
    rewards = np.random.default_rng(0).random(shape)
    rewards[0] = 0.5
    actions = np.arange(1, rewards.size + 1)
    own_estimate(own, Completions.of(Rewards(whole=rewards.reshape(-1)), actions, shape[1]))


def _try_loss(own: OwnFunction, bounds: LossSettings) -> None:
    """Compute the losses of two sequences, of three tokens and of one, and their gradient."""
    import torch  # takes seconds, and few runs need it in the driver

    from trainer.algorithms import importance_sampling, losses

    log_probs = torch.tensor([-0.5, -1.0, -2.0, -3.0], requires_grad=True)
    rows = torch.tensor([0, 0, 0, 1])
    tokens = PolicyTokens(
        log_ratio=log_probs - torch.tensor([-0.5, -1.5, -1.0, -3.0]),
        log_probs=log_probs,
        advantages=torch.tensor([1.0, 1.0, 1.0, -1.0]),
        sequence_mean=partial(importance_sampling.segment_mean, rows=rows),
    )
    found = losses.own_losses(own, tokens, bounds)
    try:
        (gradient,) = torch.autograd.grad(found.values.sum(), log_probs)
    except RuntimeError as error:
        raise own.wrong(f"has no gradient to the log-probabilities: {error}") from error
    if not gradient.isfinite().all():
        raise own.wrong(f"has the gradient {gradient.tolist()} to the log-probabilities")
