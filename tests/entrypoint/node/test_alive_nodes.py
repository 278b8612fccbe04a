"""Which nodes Ray takes for alive, of what its dashboard answers."""

from __future__ import annotations

import pytest

from entrypoint.net.wait import NotYetError
from entrypoint.node.ray_node import Alive, alive_nodes


def test_all_living_nodes_are_counted_however_many_and_none_of_the_dead(dashboard: str) -> None:
    alive = alive_nodes(dashboard, "right")
    assert len(alive) == 150
    assert alive[0] == Alive("96", "w-150", "10.0.0.150")


def test_who_cannot_ask_does_not_know_yet(dashboard: str) -> None:
    with pytest.raises(NotYetError, match="401"):
        alive_nodes(dashboard, "wrong")
