"""How the flags of a run have its episodes run: environment or agent, chat, limits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from contract.journal import journal_writer
from env.environments.load import (
    agent_attempt,
    begin,
    environment_factory,
    trial,
    verifiers_attempt,
)
from env.episodes.attempts import Attempt, EnvironmentAttempt, EpisodeRunner, OnFailure
from env.episodes.chat import Chat, PlainChat, TemplateChat
from env.episodes.codec import TextCodec
from env.episodes.environment import SingleTurn
from env.episodes.types import Limits, Reply, ReplyStop, Turn
from trainer.config.config import Config
from trainer.rollout.image_chat import ImageChat
from trainer.rollout.prompts import load_codec

if TYPE_CHECKING:
    from trainer.rollout.episodes import EpisodeSetup


class OneReply(SingleTurn):
    """One reply. A reply that is cut off leaves its episode unfinished."""

    async def step(self, reply: Reply) -> Turn:
        return Turn(done=reply.stop is not ReplyStop.LENGTH)


def of_flags(config: Config) -> EpisodeSetup | None:
    """Return how episodes run; None if each prompt has completions of one turn.

    Runs the user's file. Raises EnvironmentSpecError for an environment that cannot be used.
    """
    if not config.runs_episodes:
        return None
    from trainer.rollout.episodes import EpisodeSetup  # imports Ray, which a check has no use for

    codec = load_codec(config.pretrain)
    chat = chat_of(config, codec)
    runner = EpisodeRunner(
        attempt_of(config, chat, codec),
        chat,
        config.prompt_max_len,
        OnFailure(config.episodes.environment_failure),
        has_reward=bool(config.reward_spec or config.reward_pretrain),
    )
    return EpisodeSetup(
        runner, journal_writer(config.files.journal), deterministic=config.train.full_determinism
    )


def chat_of(config: Config, codec: TextCodec) -> Chat:
    """Return what converts the run's messages to tokens."""
    if config.sees_images:
        from transformers import AutoConfig

        from trainer.models import pretrained
        from trainer.models.image_processor import ImageProcessor  # imports torch

        token: int = pretrained.load(AutoConfig, config.pretrain).image_token_id
        processor = ImageProcessor(config.pretrain, config.image_max_pixels)
        return ImageChat(codec.tokenizer, processor, token, codec.ends)
    kind = TemplateChat if config.apply_chat_template else PlainChat
    return kind(codec.tokenizer, codec.ends)


def limits_of(config: Config) -> Limits:
    """Return the limits of an episode."""
    return Limits(
        turns=config.episodes.max_turns if config.has_environment else 1,
        prompt=config.prompt_max_len,
        reply=config.sampling.max_new_tokens,
        observation=config.episodes.max_obs_length,
        total=config.longest_sample,
        seconds=config.episodes.max_episode_seconds,
    )


def attempt_of(config: Config, chat: Chat, codec: TextCodec) -> Attempt:
    limits, sampling = limits_of(config), config.sampling
    if agent := config.episodes.agent_func_path:
        load = partial(agent_attempt, temperature=sampling.temperature, top_p=sampling.top_p)
        return load(Path(agent), codec, limits)
    if not config.has_environment:
        return EnvironmentAttempt(OneReply, chat, limits)
    spec = config.episodes.environment
    arguments = config.episodes.environment_args.values
    if spec.startswith("verifiers:"):
        return verifiers_attempt(spec, arguments, chat, limits)
    factory = environment_factory(spec, arguments)
    with trial(factory) as environment:
        begin(spec, chat, environment.tools)
    return EnvironmentAttempt(factory, chat, limits)
