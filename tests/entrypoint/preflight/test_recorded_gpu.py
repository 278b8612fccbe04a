"""The checks of an H200 whose answers were recorded, against what its own machine printed."""

from __future__ import annotations

from pathlib import Path

from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.machine.view import Machine
from entrypoint.preflight.check import Context, Result
from entrypoint.preflight.run import CHECKS
from entrypoint.preflight.verdict import Verdict
from tests.support import machines


def asked(dev: Path, state: str) -> dict[str, Result]:
    machine = Machine(dev=dev, nvml=lambda: machines.nvml(state), amdsmi=lambda: None)
    where = Context(Head(1, 1, "a test"), read_settings({}), machine)
    checks = [check for check in CHECKS if check.name.startswith("gpu.") and not check.loads]
    return {check.name: check.run(where) for check in checks}


H200 = {
    "gpu.count": "pass: 1 GPU device file; GPU 0: NVIDIA H200",
    "gpu.recovery": "pass: GPU 0: the driver asks for nothing",
    "gpu.ecc": "pass: GPU 0: 0 uncorrected and 0 corrected memory errors",
    "gpu.remapped_rows": "pass: GPU 0: 0 rows remapped for uncorrected errors",
    "gpu.slowdown": "pass: GPU 0: clocks are not held down",
    "gpu.temperature": "pass: GPU 0: below 89 °C",
    "gpu.pcie": "pass: GPU 0: PCIe x16 of x16, generation 5",
    "gpu.links": "skip: these GPUs, or their driver, do not tell",
    "gpu.partition": "pass: GPU 0: the GPU is whole",
    "gpu.memory": "pass: GPU 0: less than 1.0 GiB is held",
}
"""Lines of `rollcall doctor` on the machine of h200-idle, a virtual one with a single GPU."""


def test_a_recorded_h200_is_judged_as_it_was_on_its_own_machine(tmp_path: Path) -> None:
    dev = machines.nvidia_dev(tmp_path, 1)
    told = asked(dev, "h200-idle")
    assert {name: f"{told[name].verdict}: {told[name].evidence}" for name in H200} == H200


def test_a_recorded_h200_at_work_is_held_by_the_process_that_works_there(tmp_path: Path) -> None:
    dev = machines.nvidia_dev(tmp_path, 1)
    told = asked(dev, "h200-busy")
    held = told.pop("gpu.memory")
    assert held.verdict is Verdict.FAIL
    assert "29.0 GiB of 140.4 GiB are held by processes 622" in held.evidence
    bad = [one for one in told.values() if one.verdict in (Verdict.WARN, Verdict.FAIL)]
    assert bad == []
