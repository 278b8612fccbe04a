"""Who is there, who may be back, and who is gone for good."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry

NAMES = tuple("abcd")
ACTS: dict[str, Callable[[NodeRegistry, str], object]] = {
    "starts": lambda registry, name: registry.check_in(info(name, joined=False), ""),
    "joins": lambda registry, name: registry.check_in(info(name), ""),
    "is unfit": lambda registry, name: registry.check_in(info(name, unfit=("a GPU",)), ""),
    "dies": lambda registry, name: die(registry, name),
    "is evicted": lambda registry, name: registry.evict(name, "it is broken"),
    "is slow": lambda registry, name: registry.evict(name, "it is slow", seconds=60.0),
    "is unwanted": lambda registry, name: registry.replace_first({name: "it is slow"}),
    "is told to join again": lambda registry, name: registry.forget(name),
    "was there under the last head": lambda registry, name: registry.remember([info(name)]),
}


def info(name: str, *, joined: bool = True, unfit: tuple[str, ...] = ()) -> NodeInfo:
    return NodeInfo(node=name, address=name, versions={}, joined=joined, unfit=unfit)


def die(registry: NodeRegistry, name: str) -> None:
    if entry := registry.poll_opened(name):
        registry.poll_closed(entry, hung_up=True)


@given(
    acts=st.lists(st.tuples(st.sampled_from(sorted(ACTS)), st.sampled_from(NAMES)), max_size=20),
    patience=st.sampled_from([0.0, 60.0]),
)
def test_each_member_is_there_away_or_lost_and_nobody_else_is_any_of_them(
    acts: list[tuple[str, str]], patience: float
) -> None:
    registry = NodeRegistry(info("head"), 2, "first")
    members = set[str]()
    for act, name in acts:
        ACTS[act](registry, name)
        if act == "was there under the last head":
            members.add(name)
        if act == "joins" and name in {entry.node for entry in registry.roll_state().node_infos}:
            members.add(name)
        seen = registry.attendance(patience)
        lost = [node.name for node in seen.lost]
        assert sorted([*seen.heard, *seen.away, *lost]) == sorted(members)
        assert all(node.reason for node in seen.lost)
        if act in ("is evicted", "is slow", "is unfit", "is unwanted") and name in members:
            assert name not in seen.away
