"""How busy this node's GPUs are, and how much of their memory is used, looked at now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from entrypoint.config.settings import Settings
from entrypoint.machine.gpus import discover
from entrypoint.machine.gpus.protocol import Gpu, GpuError
from entrypoint.machine.view import THIS_MACHINE, Machine

LOOK_SECONDS = 5.0
AGAIN_SECONDS = 60.0
"""Pause after an error of the driver."""
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Condition:
    """How fast a GPU may compute now. None: it does not know."""

    clock: int | None = None
    """MHz."""
    watts: int | None = None
    degrees: int | None = None
    held_by: tuple[str, ...] = ()
    """Why its clocks are held down."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    busy: float | None
    """Share of the last moment in which the GPU computed, 0 to 1; None: unknown."""
    used: int
    """MiB of its memory."""
    total: int
    """MiB."""
    condition: Condition = field(default_factory=Condition)


@contextmanager
def watching(
    settings: Settings,
    tell: Callable[[Sequence[GpuUse]], None],
    machine: Machine = THIS_MACHINE,
) -> Iterator[None]:
    """Tell the use of the node's GPUs every LOOK_SECONDS, from a thread: a driver may hang."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set() and _watch(settings, machine, tell, stop):
            tell(())
            stop.wait(AGAIN_SECONDS)

    threading.Thread(target=watch, name="gpu-use", daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def _watch(
    settings: Settings,
    machine: Machine,
    tell: Callable[[Sequence[GpuUse]], None],
    stop: threading.Event,
) -> bool:
    """Tell the use until `stop`; return whether the driver has failed, so that it is worth a retry.

    Without a GPU there is nothing to tell.
    """
    try:
        with discover.opened(settings, machine) as gpus:
            if isinstance(gpus, str):
                return False
            while not stop.is_set():
                tell(of(gpus))
                stop.wait(LOOK_SECONDS)
    except GpuError:
        return True
    return False


def of(gpus: Sequence[Gpu | GpuError | None]) -> list[GpuUse]:
    """Return the use of the GPUs of this node that answer."""
    used = [gpu for gpu in gpus if gpu is not None and not isinstance(gpu, GpuError)]
    return [use for use in map(_of, used) if use is not None]


def _of(gpu: Gpu) -> GpuUse | None:
    try:
        busy, memory, condition = gpu.busy(), gpu.memory(), _condition(gpu)
    except GpuError:
        return None
    if memory is None:
        return None
    return GpuUse(busy, memory.used // MIB, memory.total // MIB, condition)


def _condition(gpu: Gpu) -> Condition:
    watts, temperature, held = gpu.power(), gpu.temperature(), gpu.slowdowns() or ((), ())
    return Condition(
        gpu.clock(),
        None if watts is None else round(watts),
        None if temperature is None else round(temperature.now),
        tuple(dict.fromkeys([*held[0], *held[1]])),
    )
