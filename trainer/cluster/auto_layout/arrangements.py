"""Lists the arrangements of a run's roles on the GPUs of a cluster, the preferred one first.

An arrangement says how many GPUs each role has, and which roles share GPUs. A flag that was given
keeps its value; every other flag of the layout is free. Pure: memory is checked elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from contract.resources import NodeResources
from trainer.config import layout
from trainer.config.layout import PREFIXES, Role

if TYPE_CHECKING:
    from trainer.config.config import Config

PAIRS = ("colocate_actor_ref", "colocate_critic_reward")
COLOCATION = ("colocate_all_models", *PAIRS)
SIZES = tuple(
    f"{prefix}_{size}"
    for role, prefix in PREFIXES.items()
    for size in (
        ("num_engines", "tensor_parallel_size")
        if role == Role.ENGINE
        else ("num_nodes", "num_gpus_per_node")
    )
)
LAYOUT_FLAGS = frozenset((*COLOCATION, *SIZES))
"""The flags that decide an arrangement."""
SIZED = LAYOUT_FLAGS - {"vllm_tensor_parallel_size", "colocate_all_models"}
"""Flags of users who lay the roles out themselves, and may leave GPUs without work."""
HALVES = (1 / 3, 2 / 3)
"""Bounds of the engines' share of the GPUs that counts as balanced, if engines have their own."""

FEWER_ENGINES = 8
"""The search leaves out at most so many engines that do not fit the nodes' free GPUs."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Ranks of a model: `per_node` on each of `nodes` different nodes."""

    nodes: int
    per_node: int

    @property
    def slots(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What an arrangement must respect."""

    config: Config
    given: Set[str]
    """Names of the flags that the user gave."""
    offers: Sequence[NodeResources]
    """The nodes that have GPUs."""
    tensor_parallel: Sequence[int]
    """The possible GPUs of one engine, in the order of preference."""

    @property
    def gpus(self) -> int:
        return sum(offer.gpus for offer in self.offers)

    @property
    def roles(self) -> list[Role]:
        """The roles of the run, without the engines."""
        groups = (group for pool in layout.of(self.config).pools for group in pool.groups)
        return [group.role for group in groups if group.role != Role.ENGINE]

    def value(self, flag: str) -> Any:
        """Return the value of a flag that the user gave; None if the flag is free."""
        if flag not in self.given:
            return None
        if flag == "vllm_tensor_parallel_size":
            return self.config.vllm.tensor_parallel_size
        return getattr(self.config, flag)

    def has_own_gpus(self, role: Role) -> bool:
        """Return whether a flag gives GPUs to `role` alone: a size, or custom resources."""
        prefix = PREFIXES[role]
        names = (f"{prefix}_num_nodes", f"{prefix}_num_gpus_per_node")
        return bool(any(self.value(name) for name in names) or f"{prefix}_resources" in self.given)

    def room(self, *roles: Role) -> list[int]:
        """Return the GPUs of each node that processes of all `roles` can use."""
        wanted = layout.resources_of(self.config, roles)
        return [
            min(
                [offer.gpus, *(int(offer.resources.get(n, 0) / each) for n, each in wanted.items())]
            )
            for offer in self.offers
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Values of flags that decide the GPUs of every role."""

    flags: Mapping[str, bool | int]
    slots: int
    """GPUs that have work."""
    shared: bool
    """All models share GPUs; engines too, unless training is asynchronous."""
    preference: tuple[float, ...]
    """Of arrangements with as many slots, the least comes first."""


def arrangements(wish: Wish) -> list[Arrangement]:
    """Return every arrangement that may fit the nodes: first those that use most GPUs."""
    found = [*_together(wish), *_apart(wish)]
    return sorted(found, key=lambda one: (-one.slots, one.preference))


def _together(wish: Wish) -> Iterator[Arrangement]:
    """Yields arrangements with all models on the same GPUs."""
    asked = wish.value("colocate_all_models")
    separated = any(flag in wish.given for flag in PAIRS) or any(
        wish.has_own_gpus(role) for role in wish.roles if role != Role.POLICY
    )
    if asked is False or (separated and not asked):
        return
    for shape in _shapes(wish, Role.POLICY, wish.room(*wish.roles, Role.ENGINE)):
        flags = {"colocate_all_models": True} | _sized(Role.POLICY, shape)
        if wish.config.async_train:
            for made in _with_engines(wish, flags, shape, shape.slots):
                yield replace(made, preference=(0, 0, *made.preference[2:]))
            continue
        for size in wish.tensor_parallel:
            if shape.per_node % size == 0:
                engines = wish.value("vllm_num_engines") or shape.slots // size
                unequal = abs(shape.slots - engines * size)  # GPUs with no engine, or with two
                yield Arrangement(
                    flags={**flags, **_engines(engines, size)},
                    slots=shape.slots,
                    shared=True,
                    preference=(unequal, 0, size),
                )


def _apart(wish: Wish) -> Iterator[Arrangement]:
    """Yields arrangements with GPUs for the engines, and for each pair of models."""
    if wish.value("colocate_all_models"):
        return
    pairs = dict(zip(PAIRS, _pairs(wish), strict=True))
    guests = {Role.REFERENCE} if pairs["colocate_actor_ref"] else set()
    guests |= {Role.REWARD} if pairs["colocate_critic_reward"] else set()
    owners = [role for role in wish.roles if role not in guests and role != Role.POLICY]
    for shape in _shapes(wish, Role.POLICY, wish.room(Role.POLICY), useful=True):
        options = [_shapes_beside(wish, role, shape) for role in owners]
        for shapes in product(*options):
            own = dict(zip(owners, shapes, strict=True))
            flags = {"colocate_all_models": False} | pairs | _sized(Role.POLICY, shape)
            for role, its in own.items():
                flags |= _sized(role, its)
            used = shape.slots + sum(its.slots for its in own.values())
            unequal = abs(shape.slots - own[Role.CRITIC].slots) if Role.CRITIC in own else 0
            for made in _with_engines(wish, flags, shape, used):
                yield replace(
                    made, preference=(*made.preference[:4], unequal, *made.preference[4:])
                )
            frozen = [its for role, its in own.items() if role in (Role.REFERENCE, Role.REWARD)]
            yield from _sharing_engines(wish, flags, used, frozen)


def _pairs(wish: Wish) -> tuple[bool, bool]:
    """Return whether the reference shares the policy's GPUs, and the reward the critic's."""
    roles = wish.roles
    reference, reward = (wish.value(flag) for flag in PAIRS)
    if reference is None:
        reference = Role.REFERENCE in roles and not wish.has_own_gpus(Role.REFERENCE)
    if reward is None:
        both = Role.CRITIC in roles and Role.REWARD in roles
        reward = both and not wish.has_own_gpus(Role.REWARD)
    return reference, reward


def _with_engines(
    wish: Wish, flags: Mapping[str, bool | int], policy: Shape, used: int
) -> Iterator[Arrangement]:
    """Yields the arrangement with engines on the GPUs that `used` leaves, for each engine size."""
    left = wish.gpus - used
    for size in wish.tensor_parallel:
        given = wish.value("vllm_num_engines")
        most = left // size
        # GPUs that are left on several nodes may hold fewer engines of several GPUs.
        fewest = most if size == 1 else max(1, most - min(len(wish.offers), FEWER_ENGINES))
        for engines in [given] if given else range(most, fewest - 1, -1):
            if not 0 < engines * size <= left:
                continue
            share = engines * size / wish.gpus
            unbalanced = max(HALVES[0] - share, share - HALVES[1], 0)
            yield Arrangement(
                flags={**flags, **_engines(engines, size)},
                slots=used + engines * size,
                shared=False,
                preference=(0, 1, size, unbalanced, -policy.per_node, abs(share - 0.5)),
            )


def _sharing_engines(
    wish: Wish, flags: Mapping[str, bool | int], used: int, frozen: Sequence[Shape]
) -> Iterator[Arrangement]:
    """Yields the arrangement with engines on a frozen model's GPUs, if models take all GPUs."""
    for host, size in product(frozen, wish.tensor_parallel):
        engines = wish.value("vllm_num_engines") or host.slots // size
        fits = 0 < engines * size <= host.slots and host.per_node % size == 0
        if fits and used <= wish.gpus < used + engines * size:
            yield Arrangement(
                flags={**flags, **_engines(engines, size)},
                slots=used,
                shared=False,
                preference=(0, 2, size),
            )


def _shapes(wish: Wish, role: Role, room: Sequence[int], *, useful: bool = False) -> list[Shape]:
    """Return the shapes that nodes with so much `room` can hold, and the flags allow.

    `useful`: of free GPUs per node, only powers of two and whole nodes.
    """
    prefix = PREFIXES[role]
    nodes, per_node = (
        wish.value(f"{prefix}_{size}") or None for size in ("num_nodes", "num_gpus_per_node")
    )
    most = max(room, default=0)
    sizes: Sequence[int] = range(1, most + 1)
    if useful:
        sizes = sorted({*room, *(2**n for n in range(most.bit_length()))} - {0})
    return [
        Shape(n, each)
        for each in ([per_node] if per_node else sizes)
        for n in range(1, sum(gpus >= each for gpus in room) + 1)
        if nodes in (None, n)
    ]


def _shapes_beside(wish: Wish, role: Role, policy: Shape) -> list[Shape]:
    """Return the shapes for a role with GPUs of its own: like the policy's, or on one node."""
    found = _shapes(wish, role, wish.room(role), useful=True)
    if wish.has_own_gpus(role):
        return found
    if role == Role.REWARD:
        return [shape for shape in found if shape.slots <= max(1, wish.gpus // 8)][-1:]
    return [its for its in found if its == policy or (its.nodes == 1 and its.slots < policy.slots)]


def _sized(role: Role, shape: Shape) -> dict[str, bool | int]:
    prefix = PREFIXES[role]
    return {f"{prefix}_num_nodes": shape.nodes, f"{prefix}_num_gpus_per_node": shape.per_node}


def _engines(count: int, size: int) -> dict[str, bool | int]:
    return {"vllm_num_engines": count, "vllm_tensor_parallel_size": size}
