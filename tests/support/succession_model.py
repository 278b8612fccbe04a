"""Every interleaving of four nodes that may lead a run, within bounds, by breadth-first search.

The decisions are those of the product itself: `Rules` has its pure functions. The model has what
surrounds them: leases made by exclusive create, one journal, clocks, crashes. A node may pause
between any two of its actions, so that freezes, slow storage, and cuts of network or storage are
interleavings like others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from contract.files import epochs
from entrypoint.run import succession
from entrypoint.run.succession import Row, Vigil

PATIENCE = 1
"""Ticks. A vigil's age is counted up to one more."""
SILENT = PATIENCE + 1


@dataclass(frozen=True, slots=True)
class Rules:
    """What the product decides."""

    next_number: Callable[[int, int], int] = epochs.next_number
    is_superseded: Callable[[int, int], bool] = epochs.is_superseded
    is_in_force: Callable[[int | None, int], bool] = epochs.is_in_force
    may_succeed: Callable[[Vigil, int, Row, float, float], bool] = succession.may_succeed
    begins_before_it_reads: bool = True
    """A new head writes its first event before it reads where the run is."""


@dataclass(frozen=True, slots=True)
class Bounds:
    nodes: int = 4
    leases: int = 3
    steps: int = 2
    crashes: int = 2
    restarts: int = 1


class Node(NamedTuple):
    """The first node is the platform's head; it is a newcomer where it starts again."""

    does: str
    """down, waits, comes, chose, took, begins, began, read, leads."""
    number: int = 0
    """Of its lease, or of the one that it is about to make."""
    age: int = -1
    """Of its vigil of the present lease, in ticks; -1: it has none."""
    knows: bool = False
    """It has heard from a head what a head has to know, or it is the platform's head."""
    step: int = 0
    """Where it has read that the run is."""
    driver: int = 0
    """The lease of its training driver, which outlives it; 0: there is none."""
    at: int = 0
    """The driver's newest step."""
    checked: bool = False
    """The driver has looked at the leases, and is about to write."""
    late: int = 0
    """What the driver has written since there is a later lease."""


class State(NamedTuple):
    nodes: tuple[Node, ...]
    lease: int
    """The newest one."""
    written: int
    """The newest epoch of the journal."""
    step: int
    """The newest finished step that is in force."""
    crashes: int
    restarts: int
    broken: str = ""


@dataclass(slots=True)
class Found:
    states: int = 0
    violations: list[str] = field(default_factory=list)
    stuck: int = 0
    """States from which no way leads to another step, without a crash or a restart."""


def begin(bounds: Bounds) -> State:
    head = Node("leads", number=1, knows=True, driver=1)
    workers = [Node("waits", knows=True)] * (bounds.nodes - 1)
    return State((head, *workers), 1, 1, 0, bounds.crashes, bounds.restarts)


def explore(rules: Rules, bounds: Bounds, most: int = 2_000_000) -> Found:
    """Visit all states. Stops at the first violation."""
    first = begin(bounds)
    found, backwards = Found(), dict[State, list[State]]()
    seen, queue = {first}, deque([first])
    while queue and not found.violations:
        state = queue.popleft()
        for after, is_fault in _moves(state, rules, bounds):
            after = _ordered(after)
            if not is_fault:
                backwards.setdefault(after, []).append(state)
            if after not in seen:
                seen.add(after)
                queue.append(after)
                if after.broken:
                    found.violations.append(after.broken)
        assert len(seen) <= most, "the bounds are too wide"
    found.states = len(seen)
    if not found.violations:
        found.stuck = len(_stuck(seen, backwards, bounds))
    return found


def _stuck(seen: set[State], backwards: dict[State, list[State]], bounds: Bounds) -> list[State]:
    """A step is due wherever a node lives that can lead, and a number is left to take."""
    good = {state for state in seen if state.step == bounds.steps}
    queue = deque(good)
    while queue:
        for before in backwards.get(queue.popleft(), ()):
            if before not in good:
                good.add(before)
                queue.append(before)
    return [state for state in seen - good if state.lease < bounds.leases and _can_lead(state)]


def _can_lead(state: State) -> bool:
    return any(node.does != "down" and node.knows for node in state.nodes)


def _ordered(state: State) -> State:
    """Workers are alike."""
    head, *workers = state.nodes
    return state._replace(nodes=(head, *sorted(workers)))


def _moves(state: State, rules: Rules, bounds: Bounds) -> Iterator[tuple[State, bool]]:
    """Yield what may come next, and whether a fault has brought it."""
    if any(0 <= node.age < SILENT for node in state.nodes):
        yield _all(state, lambda node: node._replace(age=_older(node.age))), False
    for place, node in enumerate(state.nodes):
        for after in _acts(state, place, rules, bounds):
            yield after, False
        if node.driver and (node.checked or node.at < bounds.steps):
            yield _writes(state, place, rules), False
        if state.crashes and node.does != "down":
            less = state._replace(crashes=state.crashes - 1)
            yield _set(less, place, Node("down")), True
            if node.driver:  # its entrypoint alone
                own = node._replace(does="down", number=0, age=-1, knows=False, step=0)
                yield _set(less, place, own), True
        if state.restarts and node.does == "down":
            does = "waits" if place else "comes"
            less = state._replace(restarts=state.restarts - 1)
            yield _set(less, place, Node(does, knows=place == 0)), True


def _acts(state: State, place: int, rules: Rules, bounds: Bounds) -> Iterator[State]:
    node = state.nodes[place]
    if node.does in ("waits", "comes"):
        if node.age < 0:
            yield _set(state, place, node._replace(age=0))  # its first look at this lease
        elif node.does == "waits" and node.age and _answers(state):  # it hears the head
            yield _set(state, place, node._replace(age=0))
        if not node.knows and _answers(state):  # it checks in
            yield _set(state, place, node._replace(knows=True))
        if node.knows and state.lease < bounds.leases and _may_choose(state, node, rules):
            number = rules.next_number(state.lease, state.written)
            yield _set(state, place, Node("chose", number, knows=True))
    elif node.does == "chose":
        if node.number <= state.lease:  # exclusive create: somebody was faster
            yield _set(state, place, Node("waits" if place else "comes", knows=True))
        else:
            made = state._replace(lease=node.number)
            yield _set(_changed(made), place, Node("took", node.number, knows=True))
    else:
        yield from _leads(state, place, rules)


def _leads(state: State, place: int, rules: Rules) -> Iterator[State]:
    node = state.nodes[place]
    if node.does == "down":
        return
    if node.number == state.lease and any(other.age >= 0 for other in state.nodes):
        yield _changed(state)  # a heartbeat
    if rules.is_superseded(node.number, state.lease):
        yield _set(state, place, Node("down"))  # it ends its driver, and itself
        if node.does != "begins":
            return
    reads_first = not rules.begins_before_it_reads
    match node.does:
        case "took" if reads_first:
            yield _set(state, place, node._replace(does="read", step=state.step))
        case "took" | "read":
            yield _set(state, place, node._replace(does="begins"))
        case "begins":
            after = _append(state, node.number, 0, rules)
            yield _set(after, place, node._replace(does="began"))
        case "began":
            step = node.step if reads_first else state.step
            own = Node("leads", node.number, knows=True, driver=node.number, at=step)
            yield _set(state, place, own)


def _writes(state: State, place: int, rules: Rules) -> State:
    """The driver looks at the leases, and then writes its next step."""
    node = state.nodes[place]
    if not node.checked:
        if rules.is_superseded(node.driver, state.lease):
            return _set(state, place, node._replace(driver=0, at=0, late=0))
        return _set(state, place, node._replace(checked=True))
    late = node.late + (node.driver < state.lease)
    after = _append(state, node.driver, node.at + 1, rules)
    if late > 1:
        after = after._replace(broken="a superseded driver has written twice")
    return _set(after, place, node._replace(at=node.at + 1, checked=False, late=late))


def _append(state: State, epoch: int, step: int, rules: Rules) -> State:
    """A line of the journal. `step`: 0 for a head's first event."""
    if not rules.is_in_force(epoch, state.written):
        return state
    after = state._replace(written=max(epoch, state.written))
    if not step:
        return after
    if step != state.step + 1:
        return after._replace(broken=f"step {step} of lease {epoch} after step {state.step}")
    return after._replace(step=step)


def _may_choose(state: State, node: Node, rules: Rules) -> bool:
    """A newcomer on the dead holder's own machine finds its lock free, and waits for nothing."""
    if node.does == "comes" and state.lease == 1:
        return True
    if node.age < 0:
        return False
    row = {"beat": 1}
    vigil = Vigil(state.lease, row, since=-node.age, looked=0)
    return rules.may_succeed(vigil, state.lease, row, 0, PATIENCE)


def _answers(state: State) -> bool:
    return any(node.does == "leads" and node.number == state.lease for node in state.nodes)


def _changed(state: State) -> State:
    """The newest lease is another, or has another heartbeat: every watch begins anew."""
    return _all(state, lambda node: node._replace(age=-1))


def _older(age: int) -> int:
    return min(age + 1, SILENT) if age >= 0 else age


def _all(state: State, change: Callable[[Node], Node]) -> State:
    return state._replace(nodes=tuple(map(change, state.nodes)))


def _set(state: State, place: int, node: Node) -> State:
    nodes = (*state.nodes[:place], node, *state.nodes[place + 1 :])
    return state._replace(nodes=nodes)
