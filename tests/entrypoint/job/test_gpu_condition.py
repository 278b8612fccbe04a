"""What is said of the GPUs of a slow node."""

from __future__ import annotations

from entrypoint.job.slow_nodes import gpu_condition
from entrypoint.machine.gpus.use import Condition, GpuUse


def gpu(
    clock: int | None = None,
    watts: int | None = None,
    degrees: int | None = None,
    held_by: tuple[str, ...] = (),
) -> GpuUse:
    return GpuUse(0.9, 1, 2, Condition(clock, watts, degrees, held_by))


def test_the_slowest_gpu_of_the_node_is_shown_beside_the_others() -> None:
    held = gpu(1200, 350, 86, held_by=("the power limit",))
    uses = {
        "head": [gpu(1755, 690, 60), gpu(1755, 700, 62)],
        "w1": [gpu(1740, 680, 61), held],
        "w2": [gpu(1755, 690, 64), gpu(1700, 650, 66)],
    }
    assert gpu_condition("w1", uses) == (
        "its slowest GPU now: 1200 MHz, 350 W, 86 °C; the other nodes' GPUs in the median: "
        "1755 MHz, 690 W, 63 °C; its clocks are held down by the power limit"
    )


def test_only_what_is_known_is_said() -> None:
    assert gpu_condition("w1", {"head": [], "w1": []}) == ""
    assert gpu_condition("w3", {"head": [gpu(1755, 690, 60)]}) == ""
    assert gpu_condition("w1", {"w1": [gpu()], "w2": [gpu(1755)]}) == ""
    assert gpu_condition("w1", {"w1": [gpu(None, None, 80)]}) == "its slowest GPU now: 80 °C"
