"""What a fault is, and what came of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from contract.journal import timestamp


class Scene(Protocol):
    """Where a fault is played: nodes at work on a run."""

    def events(self, kind: str) -> list[dict[str, Any]]: ...

    def until(self, done: Callable[[], bool], what: str, *, within: float) -> None:
        """Raises AssertionError where `done` is not true within so many seconds."""
        ...

    def faults(self) -> list[str]:
        """What the checker has to say of the run."""
        ...

    def orphans(self) -> Sequence[str]:
        """What runs and should not."""
        ...


S = TypeVar("S", bound=Scene)


UNDONE = frozenset[str]()
"""The head ends with the attempt, or before it."""
DIED = frozenset({"unknown", "node_lost", "collective"})
LOST = frozenset({"node_lost"})
HUNG = frozenset({"hang", "unknown", "collective"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Generic[S]):
    name: str
    sentence: str
    """What happens, in words."""
    inject: Callable[[S], object]
    heal: Callable[[S], object] | None = None
    after: float = 0.0
    """Seconds between the two."""
    deadline: float
    """Seconds from the fault to a step that was never finished before."""
    classes: frozenset[str] = frozenset()
    """One of them is the class of the attempt that it ends; with none, the attempt outlives it or
    ends with its head."""
    restarts: bool | None = True
    """Whether it ends the attempt; None where the trainer may repair itself before."""
    fast: bool = False
    """Whether it is played in every test run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    fault: str
    seconds: float
    """From the fault to the next step that was never finished before."""
    classes: tuple[str, ...]
    answers: tuple[str, ...]
    attempts: int
    """So many were begun."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def undergo(scene: S, fault: Fault[S]) -> Result:
    """Play `fault` on a scene that trains. Raises AssertionError where it is not survived in time,
    or where the run shows afterwards that something went wrong."""
    before = {kind: len(scene.events(kind)) for kind in ("failure", "decision", "attempt")}
    newest, began, since = newest_step(scene), time.monotonic(), timestamp()
    fault.inject(scene)
    newest = max(newest, newest_step(scene))
    if fault.heal is not None:
        time.sleep(fault.after)
        fault.heal(scene)

    def goes_on() -> bool:
        steps = scene.events("step")
        if not steps or (fault.restarts and steps[-1]["attempt"] <= before["attempt"]):
            return False
        step: int = steps[-1]["details"]["step"]
        return step > newest + (0 if fault.restarts else 1)

    left = fault.deadline - (time.monotonic() - began)
    scene.until(goes_on, f"new step after: {fault.sentence}", within=left)
    seconds = time.monotonic() - began
    new = {kind: scene.events(kind)[count:] for kind, count in before.items()}
    assert_kept(scene, after=since)
    result = Result(
        fault=fault.name,
        seconds=round(seconds, 1),
        classes=tuple(event["details"]["failure"] for event in new["failure"]),
        answers=tuple(event["sentence"] for event in new["decision"]),
        attempts=len(new["attempt"]),
    )
    assert_survived(scene, fault, result)
    return result


def newest_step(scene: Scene) -> int:
    """Of all that was ever finished."""
    return max((event["details"]["step"] for event in scene.events("step")), default=0)


def assert_kept(scene: Scene, after: str) -> None:
    """No finished step is made again: whatever was lost, what is left of the nodes' memory, or the
    disk, has it. Where nodes hold none, as there is one alone, that is not promised."""
    if not any("lie on two" in event["sentence"] for event in scene.events("peers")):
        return
    steps = scene.events("step")
    for event in [*scene.events("resume"), *scene.events("rank-replaced")]:
        if event["at"] > after:
            made = [one["details"]["step"] for one in steps if one["at"] < event["at"]]
            assert event["details"]["step"] >= made[-1], event["sentence"]


def assert_survived(scene: S, fault: Fault[S], result: Result) -> None:
    said = f"{fault.sentence}: {result}"
    if fault.restarts is False:
        assert result.attempts == 0, said
    if fault.restarts is not None or result.attempts:
        assert bool(result.classes) == bool(fault.classes), said
        assert not fault.classes or set(result.classes) & fault.classes, said
    assert (found := scene.faults()) == [], f"{said}: {found}"
    assert (orphans := scene.orphans()) == [], f"{said}: {orphans}"
