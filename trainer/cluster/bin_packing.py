"""Pure: a layout and the nodes that a cluster offers → where each slot goes, or what is missing.

The search is exact: it refuses nothing that fits. Nodes that offer the same are tried once, and a
state of the cluster that led nowhere is not entered again, which keeps it quick for the clusters
there are (nodes of one or two kinds).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from contract.resources import Offer
from trainer.config.layout import Layout, Pool

SHARES = (1.0, 0.5, 0.25, 0.1)
"""CPUs of one slot without GPUs: processes share cores where there are more of them."""

Room = tuple[float, ...]
"""What a node has left: slots, then each custom resource that the layout asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Where the slots of a layout lie."""

    layout: Layout
    on_gpus: bool
    cpus: float
    """CPUs of a slot; 0 where slots are GPUs."""
    nodes: Mapping[str, tuple[str, ...]]
    """Pool → the node of each of its nodes, in their order."""
    shortfalls: tuple[str, ...] = ()
    """One sentence for each pool that has no place; where there are any, nothing may start."""
    note: str = ""
    """What was arranged otherwise than the flags say, and how to choose."""

    def node_of(self, pool: Pool, slot: int) -> str:
        return self.nodes[pool.name][slot // pool.per_node]


def assign(layout: Layout, offers: Sequence[Offer]) -> Assignment:
    """A place for every slot, each on one node with its neighbours; or every shortfall."""
    if any(offer.gpus for offer in offers):
        found = _attempt(layout, offers, None)
        return _sharing(layout, offers) or found if found.shortfalls else found
    for share in SHARES:
        found = _attempt(layout, offers, share)
        if not found.shortfalls:
            break
    return found


def _sharing(layout: Layout, offers: Sequence[Offer]) -> Assignment | None:
    """With the engines on the GPUs of a model that is never trained, where that makes it fit.

    The guides give every GPU to a model and count the engines besides. A frozen model leaves an
    engine most of a GPU's memory, and is idle while the engines write.
    """
    engines = layout.pool_of("engine")
    for host in layout.pools:
        frozen = all(group.role in ("reference", "reward") for group in host.groups)
        fits = host.per_node % engines.per_node == 0 and engines.slots <= host.slots
        if not (frozen and fits):
            continue
        found = _attempt(layout.with_engines_in(host), offers, None)
        if not found.shortfalls:
            note = (
                f"no {engines.slots} GPUs are left for the engines: they share the {host.slots} of "
                f"the {host.name}. Add nodes, or give --colocate_all_models, to choose otherwise"
            )
            return replace(found, note=note)
    return None


def _attempt(layout: Layout, offers: Sequence[Offer], share: float | None) -> Assignment:
    """`share`: CPUs of a slot; None where slots are GPUs."""
    cluster = _Cluster.of(layout, offers, share)
    placed = cluster.place(layout.pools)
    shortfalls: list[str] = []
    if placed is None:
        fitting: list[Pool] = []
        for pool in layout.pools:
            if cluster.place([*fitting, pool]) is None:
                shortfalls.append(cluster.shortfall(pool, fitting))
            else:
                fitting.append(pool)
        placed = cluster.place(fitting)
    assert placed is not None
    return Assignment(
        layout=layout,
        on_gpus=share is None,
        cpus=share or 0.0,
        nodes={
            pool: tuple(offers[place].name for place in places) for pool, places in placed.items()
        },
        shortfalls=tuple(shortfalls),
    )


@dataclass(frozen=True, slots=True)
class _Item:
    """Nodes that differ from each other, each of which must have `need`."""

    pool: str
    nodes: int
    need: Room


@dataclass(frozen=True, slots=True)
class _Cluster:
    rooms: tuple[Room, ...]
    """Of each node, before anything is placed."""
    resources: tuple[str, ...]
    share: float | None

    @classmethod
    def of(cls, layout: Layout, offers: Sequence[Offer], share: float | None) -> _Cluster:
        names = tuple(sorted({name for pool in layout.pools for name in pool.resources}))
        rooms = tuple(
            (
                float(offer.gpus if share is None else int(offer.cpus / share + 1e-9)),
                *(offer.resources.get(name, 0.0) for name in names),
            )
            for offer in offers
        )
        return cls(rooms, names, share)

    def place(self, pools: Sequence[Pool]) -> dict[str, list[int]] | None:
        """Pool → the numbers of its nodes; None where they do not fit together."""
        items = [item for pool in pools for item in self._items(pool)]
        chosen = self._search(items, 0, list(self.rooms), set())
        if chosen is None:
            return None
        placed: dict[str, list[int]] = defaultdict(list)
        for item, places in zip(items, chosen, strict=True):
            placed[item.pool] += places
        return dict(placed)

    def _items(self, pool: Pool) -> list[_Item]:
        need = self._need(pool)
        if pool.apart:
            return [_Item(pool.name, pool.nodes, need)]
        return [_Item(pool.name, 1, need)] * pool.nodes

    def _need(self, pool: Pool) -> Room:
        each = (1.0, *(pool.resources.get(name, 0.0) for name in self.resources))
        return tuple(pool.per_node * amount for amount in each)

    def _search(
        self, items: Sequence[_Item], first: int, rooms: list[Room], dead: set[tuple[int, Room]]
    ) -> list[list[int]] | None:
        """The nodes of each item from `first` on; None where there are none."""
        if first == len(items):
            return []
        state = (first, tuple(amount for room in sorted(rooms) for amount in room))
        if state in dead:
            return None
        item = items[first]
        for places in self._choices(item, rooms):
            after = list(rooms)
            for place in places:
                after[place] = _less(rooms[place], item.need)
            rest = self._search(items, first + 1, after, dead)
            if rest is not None:
                return [places, *rest]
        dead.add(state)
        return None

    def _choices(self, item: _Item, rooms: Sequence[Room]) -> Iterator[list[int]]:
        """Sets of nodes for an item, best first; of nodes that have the same left, the first."""
        alike: dict[Room, list[int]] = defaultdict(list)
        for place, room in enumerate(rooms):
            if all(has >= wants - 1e-9 for has, wants in zip(room, item.need, strict=True)):
                alike[room].append(place)
        kinds = sorted(alike, key=lambda room: self._cost(room, item.need))
        for counts in _splits(item.nodes, [len(alike[kind]) for kind in kinds]):
            yield sorted(
                place
                for kind, count in zip(kinds, counts, strict=True)
                for place in alike[kind][:count]
            )

    def _cost(self, room: Room, need: Room) -> tuple[bool, float]:
        """A resource that is not asked for is left to those who ask; GPUs are kept together,
        CPUs spread."""
        pairs = zip(room[1:], need[1:], strict=True)
        spoilt = any(has > 0 and wants == 0 for has, wants in pairs)
        return spoilt, room[0] if self.share is None else -room[0]

    def shortfall(self, pool: Pool, fitting: Sequence[Pool]) -> str:
        """What `pool` wants, and what nodes have: all, or left where it would fit alone."""
        together, want = ("", "wants") if len(pool.groups) == 1 else (" together", "want")
        roles = " and ".join(group.role for group in pool.groups)
        each = "1 node" if pool.nodes == 1 else f"each of {pool.nodes} nodes"
        wish = f"{roles}{together} {want} {self._amounts(self._need(pool))} on {each}"
        if not pool.apart:
            wish = f"each of {pool.nodes} engines wants {self._amounts(self._need(pool))} on 1 node"
        if not self.rooms:
            return f"{wish}; there are no nodes"
        if self.place([pool]) is None:
            return f"{wish}; nodes offer {self._list(self.rooms)}"
        left = list(self.rooms)
        for other, places in (self.place(fitting) or {}).items():
            need = self._need(next(p for p in fitting if p.name == other))
            for place in places:
                left[place] = _less(left[place], need)
        others = ", ".join(one.name for one in fitting)
        return f"{wish}; beside {others}, nodes have {self._list(left)} left"

    def _amounts(self, need: Room) -> str:
        slots = "GPU" if self.share is None else "CPU slot"
        custom = [f" and {n:g} {name}" for n, name in self._custom(need) if n]
        return f"{need[0]:g} {slots}{'' if need[0] == 1 else 's'}{''.join(custom)}"

    def _list(self, rooms: Sequence[Room]) -> str:
        return ", ".join(
            f"{room[0]:g}" + "".join(f" ({n:g} {name})" for n, name in self._custom(room))
            for room in rooms
        )

    def _custom(self, room: Room) -> list[tuple[float, str]]:
        return list(zip(room[1:], self.resources, strict=True))


def _less(room: Room, need: Room) -> Room:
    return tuple(round(has - wants, 6) for has, wants in zip(room, need, strict=True))


def _splits(total: int, most: Sequence[int]) -> Iterator[list[int]]:
    """Ways to take `total` from heaps of `most`; as many as possible of the first ones first."""
    if not most:
        if total == 0:
            yield []
        return
    for count in range(min(total, most[0]), max(-1, total - sum(most[1:]) - 1), -1):
        for rest in _splits(total - count, most[1:]):
            yield [count, *rest]
