"""The head's Ray, which can be started anew within one life of the entrypoint."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from entrypoint import ray_node
from entrypoint.inbox import Inbox, RayEnded
from entrypoint.ray_node import RayNode
from entrypoint.roll import Card
from entrypoint.settings import Settings


@dataclass(slots=True)
class HeadRay:
    """Starts with the `with` block; what it ends with is put into the inbox."""

    settings: Settings
    me: Card
    token: str
    inbox: Inbox
    _node: RayNode | None = None

    @property
    def dashboard(self) -> str:
        return f"http://{ray_node.host_port(self.me.address, self.settings.dashboard_port)}"

    def __enter__(self) -> HeadRay:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._node is not None:
            self._node.stop()

    def wait_ready(self) -> None:
        """Raises RayFailedError, InterruptedWaitError."""
        assert self._node is not None
        self._node.wait_ready(self._answers, self.inbox.stop)

    def alive(self) -> set[str]:
        return ray_node.alive_nodes(self.dashboard, self.token)

    def ended(self) -> bool:
        return self._node is not None and not self._node.running

    def _answers(self) -> None:
        self.alive()

    def revive(self) -> None:
        self.__exit__(None, None, None)
        self._start()
        self.wait_ready()

    def _start(self) -> None:
        self._node = RayNode(
            self.settings,
            ray_node.head_arguments(self.settings),
            address=self.me.address,
            gpus=int(self.me.inventory["gpus"]),
            token=self.token,
            on_exit=lambda code: self.inbox.put(RayEnded(code)),
        )
