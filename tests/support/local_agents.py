"""The agents of several nodes, as processes of this machine and without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contract.launch.launcher_flags import parse, telling_steps
from contract.resources import NodeResources
from trainer.cluster.launch.agent import NodeAgent
from trainer.cluster.launch.driver import Attempt, NodeLostError, RankNode, Ranks, begin
from trainer.cluster.stop import StopRequest

HOST = "127.0.0.1"


class LocalAgents:
    def __init__(self, count: int) -> None:
        self.agents = [NodeAgent() for _ in range(count)]
        self.lost: str | None = None
        """Why the next call fails; None: it does not."""

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        if self.lost:
            raise NodeLostError(self.lost)
        pairs = zip(self.agents, arguments, strict=True)
        return [getattr(agent, method)(*given) for agent, given in pairs]


def start(
    agents: LocalAgents,
    words: Sequence[str],
    root: Path,
    stop: StopRequest | None = None,
    *,
    steps: bool = False,
) -> Ranks:
    """The ranks of these words, on as many nodes as there are agents. `steps`: they tell them."""
    launch = telling_steps(parse(words)) if steps else parse(words)
    nodes = [
        (RankNode(f"id-{n}", f"node-{n}", HOST, is_head=n == 0), NodeResources(name=f"node-{n}"))
        for n in range(len(agents.agents))
    ]
    attempt = Attempt(number="1", logs=root / "logs", directory=str(root))
    return begin(launch, nodes, agents, attempt, stop or StopRequest())
