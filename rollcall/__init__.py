"""The public Python API; docs/python.md describes it. Importing it imports nothing heavy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rollcall import own_packages

if TYPE_CHECKING:
    from contract.options import ConfigError
    from entrypoint.commands.head_client import AwayError, NoAnswerError, RefusedError
    from env.environments.search import Search
    from env.episodes.environment import Environment
    from env.episodes.tools import ToolEnv
    from env.episodes.types import EnvironmentFailedError, Episode, Reply, Task, ToolCall, Turn
    from env.retrieval.client import Retriever, SearchResult, SearchStatus
    from env.types import Messages, RewardFunction, RewardRequest, Score
    from rollcall.async_client import AsyncClient
    from rollcall.client import Client, ClusterState, Event, Job
    from trainer.metrics.callbacks import (
        Callback,
        CallbackError,
        CheckpointEnd,
        EvaluationEnd,
        StepEnd,
    )
    from trainer.training.api import Result, RunError, train

__all__ = [
    "AsyncClient",
    "AwayError",
    "Callback",
    "CallbackError",
    "CheckpointEnd",
    "Client",
    "ClusterState",
    "ConfigError",
    "Environment",
    "EnvironmentFailedError",
    "Episode",
    "EvaluationEnd",
    "Event",
    "Job",
    "Messages",
    "NoAnswerError",
    "RefusedError",
    "Reply",
    "Result",
    "Retriever",
    "RewardFunction",
    "RewardRequest",
    "RunError",
    "Score",
    "Search",
    "SearchResult",
    "SearchStatus",
    "StepEnd",
    "Task",
    "ToolCall",
    "ToolEnv",
    "Turn",
    "train",
]

_MODULES = {
    "contract.options": ("ConfigError",),
    "entrypoint.commands.head_client": ("AwayError", "NoAnswerError", "RefusedError"),
    "env.environments.search": ("Search",),
    "env.episodes.environment": ("Environment",),
    "env.episodes.tools": ("ToolEnv",),
    "env.episodes.types": (
        *("EnvironmentFailedError", "Episode", "Reply", "Task", "ToolCall", "Turn"),
    ),
    "env.retrieval.client": ("Retriever", "SearchResult", "SearchStatus"),
    "env.types": ("Messages", "RewardFunction", "RewardRequest", "Score"),
    "rollcall.async_client": ("AsyncClient",),
    "rollcall.client": ("Client", "ClusterState", "Event", "Job"),
    "trainer.metrics.callbacks": (
        *("Callback", "CallbackError", "CheckpointEnd", "EvaluationEnd", "StepEnd"),
    ),
    "trainer.training.api": ("Result", "RunError", "train"),
}
"""Where each name is: it is imported when it is asked for, as launchers import this package too."""

own_packages.install()


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version(
            import_module("contract.launch.distribution").NAME
        )
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'rollcall' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
