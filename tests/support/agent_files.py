"""An agent file as OpenRLHF's users write it."""

from __future__ import annotations

from pathlib import Path

AGENT = """\
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    def __init__(self, *args, **kwargs):
        self.step_idx = 0

    async def reset(self, states: dict, **kwargs):
        return {"observation": states["observation"] + "begin "}

    async def step(self, states: dict, **kwargs):
        done = self.step_idx >= 2
        self.step_idx += 1
        reward = torch.tensor(0.5 + len(states["action_text"]))
        return {
            "rewards": reward,
            "scores": torch.tensor(float(done)),
            "environment_feedback": "" if done else f"\\n[{states['label']}] again: ",
            "done": done,
            "sampling_params": states.get("sampling_params"),
            "extra_logs": {"turn_count": self.step_idx, "note": "text"},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
"""


def write(directory: Path, text: str = AGENT) -> Path:
    path = directory / "agent_func.py"
    path.write_text(text)
    return path
