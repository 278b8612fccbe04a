"""What is wrong with the file of an environment or an agent, before anything is started.

Torch-free; the file is read and not run.
"""

from __future__ import annotations

from collections.abc import Iterator

from contract.options import Fault, MissingFile
from env.environments import environment_file_check
from trainer.config.config import Config


def faults(config: Config) -> Iterator[Fault]:
    """Yield what is wrong with --environment and --agent_func_path."""
    episodes = config.episodes
    if episodes.environment and episodes.agent_func_path:
        yield Fault(
            "--agent_func_path",
            episodes.agent_func_path,
            "contradicts --environment",
            "Give one of the two",
        )
    if not config.has_environment:
        return
    flag = "--agent_func_path" if episodes.agent_func_path else "--environment"
    found = _source(config)
    if found.missing:
        yield MissingFile(
            flag, str(found.path), found.missing, "Give a .py file that all nodes see"
        )
    elif found.fault:
        yield Fault(flag, found.spec, found.fault, found.remedy)


def warnings(config: Config) -> Iterator[str]:
    """Yield a sentence for each call that blocks all episodes, and for a cache that is off."""
    if not config.has_environment:
        return
    yield from _source(config).warnings
    if config.rollout_engine == "vllm" and not config.vllm.enable_prefix_caching:
        yield (
            "episodes with --enable_prefix_caching false: vLLM computes the whole context again "
            "for each reply"
        )


def _source(config: Config) -> environment_file_check.Source:
    episodes = config.episodes
    if episodes.agent_func_path:
        return environment_file_check.agent(episodes.agent_func_path)
    return environment_file_check.environment(episodes.environment)
