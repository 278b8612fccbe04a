"""Who has a place in the run, and who is a spare."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from entrypoint.cluster import places
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry, Spares
from entrypoint.cluster.roll import Places, RegisteredNode, RollState, roll_state

NAME = st.sampled_from("abcdefgh")
NAMES = st.lists(NAME, max_size=8)


@given(holders=NAMES, there=NAMES, count=st.integers(0, 5))
def test_no_place_has_two_nodes_no_node_two_places_and_who_is_there_stays(
    holders: list[str], there: list[str], count: int
) -> None:
    filled = places.filled(holders, there, count)
    assert len(set(filled)) == len(filled) <= count
    assert set(filled) <= set(there)
    assert len(filled) == min(count, len(set(there)))
    staying = [name for name in dict.fromkeys(holders) if name in there][:count]
    assert set(staying) <= set(filled)


@given(holders=st.lists(st.sampled_from("abcd"), unique=True), lost=NAMES, to=NAMES)
def test_work_that_moves_gives_no_node_two_places(
    holders: list[str], lost: list[str], to: list[str]
) -> None:
    now = tuple(holders)
    for one, other in zip(lost, to, strict=False):
        now = places.moved(now, one, other)
        assert len(set(now)) == len(now) <= len(holders)


def rolled(names: str, roll: Places, now: float = 1.0) -> RollState:
    entries = {name: RegisteredNode(info(name), seen_at=now) for name in names}
    return roll_state(entries, roll, now, 0.0)


def info(name: str, *, joined: bool = True) -> NodeInfo:
    return NodeInfo(node=name, address="127.0.0.3", versions={}, joined=joined, storage="first")


def test_who_came_first_works_and_the_others_are_spares() -> None:
    state = rolled("cab", Places(2, 1))
    assert (state.present, state.spares) == (("a", "c"), ("b",))
    assert str(state) == "2 of 2 workers and 1 spare are there"
    assert str(rolled("ca", Places(2, 1))) == "2 of 2 workers and 0 of 1 spares are there"
    assert rolled("ca", Places(2, 1)).complete


@given(
    acts=st.lists(st.tuples(st.sampled_from(["join", "start", "leave", "hang up"]), NAME)),
    holders=st.lists(NAME, unique=True, max_size=3),
    counted=st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()),
)
def test_a_poll_and_the_roll_call_the_same_nodes_spares(
    acts: list[tuple[str, str]], holders: list[str], counted: tuple[int, int, bool]
) -> None:
    expected, spares, kept = counted
    head = replace(info("head"), address="127.0.0.2")
    registry = NodeRegistry(head, expected, "first", spares=Spares(spares, kept=kept))
    if holders:
        registry.hold_places(holders)
    for act, name in acts:
        if act == "leave":
            registry.leaves(name)
        elif act == "hang up":
            if entry := registry.poll_opened(name):
                registry.poll_closed(entry, hung_up=True)
        else:
            registry.check_in(info(name, joined=act == "join"), "")
    told = {name for name in "abcdefgh" if registry.is_spare(name)}
    assert told == set(registry.roll_state().spares)


def test_without_spares_every_node_that_joins_works() -> None:
    assert rolled("abc", Places(2)).present == ("a", "b", "c")


def test_a_lost_workers_place_is_taken_between_two_attempts_and_kept_while_one_runs() -> None:
    held = Places(2, 1, holders=("a", "c"), held=True)
    state = rolled("ab", held)
    assert (state.present, state.spares, state.complete) == (("a",), ("b",), False)
    assert [worker.node for worker in state.lost(("a", "c"))] == ["c"]
    freed = rolled("ab", replace(held, held=False))
    assert (freed.present, freed.replaced, freed.complete) == (("a", "b"), (("c", "b"),), True)


def test_the_worker_that_comes_back_is_the_spare() -> None:
    moved = Places(2, 1, holders=places.moved(("a", "c"), "c", "b"), held=True)
    state = rolled("abc", moved)
    assert (state.present, state.spares) == (("a", "b"), ("c",))


def test_a_spare_offers_nothing_where_ray_places_the_work_until_it_has_a_place() -> None:
    head = info("head")
    registry = NodeRegistry(head, 1, "first", spares=Spares(1, bare=True))
    assert not registry.check_in(info("a", joined=False), "").bare
    assert registry.check_in(info("b", joined=False), "").bare
    registry.check_in(info("a"), "")
    registry.check_in(info("b"), "")
    state = registry.roll_state()
    assert (state.present, state.spares, state.misjoined) == (("a",), ("b",), ())
    registry.hold_places(state.present)
    registry.free_places()
    registry.evict("a", "its GPU is broken")
    assert registry.roll_state().misjoined == ("b",)
    registry.forget("b")
    assert not registry.check_in(info("b", joined=False), "").bare
    assert registry.roll_state().misjoined == ()


def test_a_node_beyond_the_workers_is_kept_as_a_spare_though_none_is_expected() -> None:
    state = rolled("abc", Places(2, kept=True))
    assert (state.present, state.spares) == (("a", "b"), ("c",))
    assert str(state) == "2 of 2 workers and 1 spare are there"


def test_a_node_that_left_because_it_is_slow_is_back_only_where_a_place_stays_empty() -> None:
    """The spare may die in the moment in which it is to take the place."""

    def taken(there: str, patience: float) -> bool:
        registry = NodeRegistry(info("head"), 2, "first", spares=Spares(1, patience=patience))
        for name in "abc":
            registry.check_in(info(name), "")
        assert registry.roll_state().with_spares
        registry.evict("a", "it is slow", seconds=60.0)
        for name in set("bc") - set(there):
            registry.evict(name, "it is gone")
        return registry.check_in(info("a", joined=False), "").refusal is None

    assert taken("b", patience=0.0)
    assert not taken("bc", patience=0.0)
    assert not taken("b", patience=60.0)
