"""The part of `openrlhf.utils.agent` that agent files need, for machines without OpenRLHF.

The classes have OpenRLHF 0.11's names, signatures and behaviour, for text.
"""

from __future__ import annotations

import copy
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

PACKAGES = ("openrlhf", "openrlhf.utils", "openrlhf.utils.agent")


class AgentExecutorBase(ABC):
    @abstractmethod
    async def execute(
        self,
        prompt: str,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Return an episode as OpenRLHF's dictionary."""


class AgentInstanceBase(ABC):
    @abstractmethod
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return states

    @abstractmethod
    async def step(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]: ...


class MultiTurnAgentExecutor(AgentExecutorBase):
    """Runs an AgentInstance of its own for each prompt."""

    def __init__(self, agent_instance_cls: type[AgentInstanceBase]) -> None:
        assert issubclass(agent_instance_cls, AgentInstanceBase), (
            "AgentInstance must inherit from AgentInstanceBase"
        )
        self.agent_instance_cls = agent_instance_cls

    async def execute(
        self,
        prompt: str,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        agent = await _made(self.agent_instance_cls)
        begun = await agent.reset({"observation": prompt, "label": label})
        room = max_length - (getattr(sampling_params, "max_tokens", None) or 1)
        tokens = _encoded(hf_tokenizer, begun["observation"])
        text = begun["observation"]
        if len(tokens) > room:
            tokens = tokens[-room:]
            text = hf_tokenizer.decode(tokens, skip_special_tokens=False)
        log_probs = [0.0] * len(tokens)
        ranges: list[tuple[int, int]] = []
        reward, scores, logs, is_truncated = 0.0, 0.0, {}, False
        while (left := max_length - len(tokens)) > 0:
            sampling_params.max_tokens = left
            answer = await llm_engine.generate(tokens, copy.deepcopy(sampling_params))
            (written,) = answer.outputs
            action = list(written.token_ids)
            is_truncated = written.finish_reason == "length"
            ranges.append((len(tokens), len(tokens) + len(action)))
            step = await agent.step(
                {
                    "observation_text": text,
                    "action_text": written.text,
                    "label": label,
                    "sampling_params": sampling_params,
                }
            )
            reward += step["rewards"].item()
            scores = step.get("scores", reward)
            logs = step.get("extra_logs", {})
            feedback = _encoded(hf_tokenizer, step["environment_feedback"])
            text += written.text + step["environment_feedback"]
            log_probs += [one[t].logprob for t, one in zip(action, written.logprobs, strict=True)]
            log_probs += [0.0] * len(feedback)
            tokens = tokens + action + feedback
            sampling_params = step.get("sampling_params") or sampling_params
            if step["done"]:
                break
        return {
            "prompt": prompt,
            "label": label,
            "images": images,
            "reward": reward,
            "scores": scores,
            "observation_tokens": tokens,
            "action_ranges": ranges,
            "rollout_log_probs": log_probs,
            "truncated": is_truncated,
            "extra_logs": logs,
        }


async def _made(kind: type[AgentInstanceBase]) -> AgentInstanceBase:
    """Return an instance. OpenRLHF's README has an `async def __init__`, which `kind()` refuses."""
    if not inspect.iscoroutinefunction(kind.__init__):
        return kind()
    agent = kind.__new__(kind)
    await kind.__init__(agent)
    return agent


def _encoded(tokenizer: Any, text: str) -> list[int]:
    tokens: list[int] = tokenizer(text=text, add_special_tokens=False)["input_ids"]
    return tokens


@contextmanager
def importable() -> Iterator[None]:
    """Inside the block `openrlhf.utils.agent` can be imported: OpenRLHF's own, or this module."""
    try:
        import openrlhf.utils.agent  # noqa: F401
    except ImportError:
        pass
    else:
        yield
        return
    before = {name: sys.modules.get(name) for name in PACKAGES}
    made = {name: ModuleType(name) for name in PACKAGES}
    for own in (AgentExecutorBase, AgentInstanceBase, MultiTurnAgentExecutor):
        setattr(made[PACKAGES[-1]], own.__name__, own)
    made["openrlhf"].utils = made["openrlhf.utils"]  # type: ignore[attr-defined]
    made["openrlhf.utils"].agent = made["openrlhf.utils.agent"]  # type: ignore[attr-defined]
    for name, module in made.items():
        module.__path__ = []
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module_before in before.items():
            if module_before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module_before
