"""Pure: a layout and the nodes of a cluster → the node of each slot, or what is missing.

The search is exact: it refuses no layout that fits. Two rules keep it fast for real clusters, which
have nodes of one or two kinds: of equal nodes only one is tried, and a state of the cluster that
has failed once is not tried again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from contract.resources import NodeResources
from trainer.config.layout import Layout, ResourcePool, Role

SHARES = (1.0, 0.5, 0.25, 0.1)
"""CPUs of one slot without GPUs. If processes outnumber cores, they share them."""

Room = tuple[float, ...]
"""Free resources of a node: slots, then each custom resource of the layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The nodes of a layout's slots."""

    layout: Layout
    on_gpus: bool
    cpus: float
    """CPUs of a slot; 0 if slots are GPUs."""
    nodes: Mapping[str, tuple[str, ...]]
    """Name of a pool → the names of its nodes, in order."""
    shortfalls: tuple[str, ...] = ()
    """One sentence for each pool that does not fit. The run may only start without shortfalls."""
    note: str = ""
    """How the assignment differs from the flags, and the flags to choose otherwise."""

    def node_of(self, pool: ResourcePool, slot: int) -> str:
        return self.nodes[pool.name][slot // pool.per_node]


def pack(layout: Layout, offers: Sequence[NodeResources]) -> Assignment:
    """Return a node for every slot, or every shortfall."""
    if any(offer.gpus for offer in offers):
        found = _attempt(layout, offers, None)
        return _sharing(layout, offers) or found if found.shortfalls else found
    for share in SHARES:
        found = _attempt(layout, offers, share)
        if not found.shortfalls:
            break
    return found


def _sharing(layout: Layout, offers: Sequence[NodeResources]) -> Assignment | None:
    """Put the engines on the GPUs of a frozen model. Returns None if the layout does not fit then.

    OpenRLHF's guides give every GPU to a model and count the engines in addition. A frozen model
    leaves most of a GPU's memory to an engine, and is idle while engines write.
    """
    engines = layout.pool_of(Role.ENGINE)
    for host in layout.pools:
        frozen = all(group.role in (Role.REFERENCE, Role.REWARD) for group in host.groups)
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


def _attempt(layout: Layout, offers: Sequence[NodeResources], share: float | None) -> Assignment:
    """`share`: CPUs of a slot; None if slots are GPUs."""
    cluster = _Cluster.of(layout, offers, share)
    placed = cluster.place(layout.pools)
    shortfalls: list[str] = []
    if placed is None:
        fitting: list[ResourcePool] = []
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
    """Distinct nodes, each of which must have `need`."""

    pool: str
    nodes: int
    need: Room


@dataclass(frozen=True, slots=True)
class _Cluster:
    rooms: tuple[Room, ...]
    """Free resources of each node before anything is placed."""
    resources: tuple[str, ...]
    share: float | None

    @classmethod
    def of(cls, layout: Layout, offers: Sequence[NodeResources], share: float | None) -> _Cluster:
        names = tuple(sorted({name for pool in layout.pools for name in pool.resources}))
        rooms = tuple(
            (
                float(offer.gpus if share is None else int(offer.cpus / share + 1e-9)),
                *(offer.resources.get(name, 0.0) for name in names),
            )
            for offer in offers
        )
        return cls(rooms, names, share)

    def place(self, pools: Sequence[ResourcePool]) -> dict[str, list[int]] | None:
        """Return pool → indices of its nodes; None if the pools do not fit together."""
        items = [item for pool in pools for item in self._items(pool)]
        chosen = self._search(items, 0, list(self.rooms), set())
        if chosen is None:
            return None
        placed: dict[str, list[int]] = defaultdict(list)
        for item, places in zip(items, chosen, strict=True):
            placed[item.pool] += places
        return dict(placed)

    def _items(self, pool: ResourcePool) -> list[_Item]:
        need = self._need(pool)
        if pool.distinct_nodes:
            return [_Item(pool.name, pool.nodes, need)]
        return [_Item(pool.name, 1, need)] * pool.nodes

    def _need(self, pool: ResourcePool) -> Room:
        each = (1.0, *(pool.resources.get(name, 0.0) for name in self.resources))
        return tuple(pool.per_node * amount for amount in each)

    def _search(
        self, items: Sequence[_Item], first: int, rooms: list[Room], dead: set[tuple[int, Room]]
    ) -> list[list[int]] | None:
        """Return the nodes of each item from `first` on; None if they do not fit."""
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
        """Yields sets of nodes for an item, best first. Of equal nodes it takes the first ones."""
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
        """Return the cost of placing `need` on a node; lower is better.

        A node with a resource that the item does not need costs more. GPUs are packed, CPUs are
        spread."""
        pairs = zip(room[1:], need[1:], strict=True)
        spoilt = any(has > 0 and wants == 0 for has, wants in pairs)
        return spoilt, room[0] if self.share is None else -room[0]

    def shortfall(self, pool: ResourcePool, fitting: Sequence[ResourcePool]) -> str:
        """Return what `pool` needs, and what nodes have, or have left beside the other pools."""
        together, want = ("", "wants") if len(pool.groups) == 1 else (" together", "want")
        roles = " and ".join(group.role for group in pool.groups)
        each = "1 node" if pool.nodes == 1 else f"each of {pool.nodes} nodes"
        wish = f"{roles}{together} {want} {self._amounts(self._need(pool))} on {each}"
        if not pool.distinct_nodes:
            wish = f"each of {pool.nodes} engines wants {self._amounts(self._need(pool))} on 1 node"
        if not self.rooms:
            return f"{wish}; there are no nodes"
        if self.place([pool]) is None:
            offering = "1 node offers" if len(self.rooms) == 1 else f"{len(self.rooms)} nodes offer"
            return f"{wish}; {offering} {self._list(self.rooms)}"
        left = list(self.rooms)
        for other, places in (self.place(fitting) or {}).items():
            need = self._need(next(p for p in fitting if p.name == other))
            for place in places:
                left[place] = _less(left[place], need)
        others = ", ".join(pool.name for pool in fitting)
        having = "1 node has" if len(left) == 1 else f"{len(left)} nodes have"
        return f"{wish}; beside {others}, {having} {self._list(left)} left"

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
    """Yields ways to take `total` from heaps of sizes `most`, most from the first heaps first."""
    if not most:
        if total == 0:
            yield []
        return
    for count in range(min(total, most[0]), max(-1, total - sum(most[1:]) - 1), -1):
        for rest in _splits(total - count, most[1:]):
            yield [count, *rest]
