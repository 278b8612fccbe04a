"""GPUs in good and bad states, through the same code as a machine's own library."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.machine.gpus import amd, discover
from entrypoint.machine.gpus import nvidia as nvidia_gpus
from entrypoint.machine.view import Machine
from entrypoint.preflight import gpu_driver, run
from entrypoint.preflight.check import Check, Context, Result
from entrypoint.preflight.run import CHECKS
from entrypoint.preflight.verdict import Verdict
from tests.support import machines

HEAD = Head(1, 1, "a test")
OF_GPUS = [check for check in CHECKS if check.name.startswith("gpu.") and not check.loads]


def context(environ: dict[str, str] | None = None, **given: Any) -> Context:
    given.setdefault("amdsmi", lambda: None)
    return Context(HEAD, read_settings(environ or {}), Machine(**given))


def asked(where: Context) -> dict[str, Result]:
    return {check.name: check.run(where) for check in OF_GPUS}


def nvidia(root: Path, state: str) -> dict[str, Result]:
    dev = machines.nvidia_dev(root)
    return asked(context(dev=dev, nvml=lambda: machines.nvml(state)))


def named(name: str) -> Check:
    return next(check for check in OF_GPUS if check.name == name)


@pytest.mark.parametrize("state", ["h100-good", "a100-good"])
def test_a_healthy_machine_of_eight_gives_no_alarm(state: str, tmp_path: Path) -> None:
    told = nvidia(tmp_path, state)
    bad = [one for one in told.values() if one.verdict in (Verdict.WARN, Verdict.FAIL)]
    assert bad == []
    assert told["gpu.ecc"].verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("name", "verdict", "evidence"),
    [
        ("gpu.count", "fail", "GPU 3: does not answer (GPU is lost)"),
        ("gpu.recovery", "fail", "GPU 0: the driver asks to reset the GPU"),
        ("gpu.ecc", "fail", "GPU 1: 2 uncorrected and 17 corrected memory errors"),
        ("gpu.remapped_rows", "fail", "GPU 2: 3 rows remapped for uncorrected errors, and one is"),
        ("gpu.slowdown", "fail", "GPU 4: clocks are held down: too hot (hardware)"),
        ("gpu.temperature", "fail", "GPU 4: 91 °C of 87 °C"),
        ("gpu.pcie", "fail", "GPU 5: PCIe x8 of x16"),
        ("gpu.links", "fail", "GPU 6: 17 of 18 links to other GPUs are up"),
        ("gpu.memory", "fail", "GPU 7: 40.0 GiB of 79.6 GiB are held by processes 4242"),
    ],
)
def test_a_fault_of_an_h100_is_told_with_the_gpu_that_has_it(
    name: str, verdict: str, evidence: str, tmp_path: Path
) -> None:
    dev = machines.nvidia_dev(tmp_path)
    result = named(name).run(context(dev=dev, nvml=lambda: machines.nvml("h100-bad")))
    assert result.verdict == verdict
    assert evidence in result.evidence


@pytest.mark.parametrize(
    ("name", "verdict", "evidence"),
    [
        ("gpu.recovery", "skip", "do not tell"),  # a driver before 570
        ("gpu.remapped_rows", "fail", "GPU 0: 513 rows"),
        ("gpu.remapped_rows", "fail", "GPU 1: 8 rows remapped for uncorrected errors, and a remap"),
        ("gpu.slowdown", "warn", "GPU 2: clocks are held down by the power limit"),
        ("gpu.pcie", "warn", "GPU 3: PCIe x16 of x16, generation 3; A100-SXM4-80GB has"),
        ("gpu.ecc", "pass", "GPUs 0, 1, 2, 3, 5, 6, 7: 0 uncorrected"),
        ("gpu.links", "warn", "GPU 5: 0 of 12 links"),
        ("gpu.temperature", "fail", "GPU 6: does not answer (Unknown Error)"),
    ],
)
def test_a_fault_of_an_a100_is_told_with_the_gpu_that_has_it(
    name: str, verdict: str, evidence: str, tmp_path: Path
) -> None:
    dev = machines.nvidia_dev(tmp_path)
    result = named(name).run(context(dev=dev, nvml=lambda: machines.nvml("a100-bad")))
    assert result.verdict == verdict
    assert evidence in result.evidence


@pytest.mark.parametrize(
    ("model", "verdict"),
    [
        ("NVIDIA H100 80GB HBM3", "fail"),
        ("NVIDIA GeForce RTX 4090", "warn"),  # a board with two of them gives each 8 lanes
        ("NVIDIA GH200 480GB", "warn"),
    ],
)
def test_fewer_lanes_are_a_fault_only_in_machines_that_give_each_gpu_all(
    model: str, verdict: str, tmp_path: Path
) -> None:
    width: dict[str, Any] = {"nvmlDeviceGetCurrPcieLinkWidth": 8, "nvmlDeviceGetName": model}
    where = context(
        dev=machines.nvidia_dev(tmp_path), nvml=lambda: machines.nvml("h100-good", **width)
    )
    told = named("gpu.pcie").run(where)
    assert told.verdict == verdict
    assert "PCIe x8 of x16" in told.evidence


def test_a_driver_that_does_not_start_is_told_by_every_check_that_asks_it(tmp_path: Path) -> None:
    library: Any = machines.RecordedNvml({"nvmlInit": {"error": 9}})
    result = named("gpu.ecc").run(context(dev=machines.nvidia_dev(tmp_path), nvml=lambda: library))
    assert result.verdict is Verdict.FAIL
    assert "NVML does not start" in result.evidence


def test_without_the_library_the_checks_say_so_and_are_skipped(tmp_path: Path) -> None:
    result = named("gpu.ecc").run(context(dev=machines.nvidia_dev(tmp_path), nvml=lambda: None))
    assert (result.verdict, result.evidence) == (
        Verdict.SKIP,
        "nvidia-ml-py is not installed, so the GPUs cannot be asked",
    )


def test_without_a_gpu_nothing_is_loaded_for_it(tmp_path: Path) -> None:
    def load() -> None:
        raise AssertionError

    told = asked(context(dev=tmp_path, nvml=load, amdsmi=load))
    assert {one.verdict for one in told.values()} == {Verdict.SKIP}
    assert {one.evidence for one in told.values()} == {discover.NO_GPU}


def test_fewer_gpus_than_asked_fail_though_there_is_none(tmp_path: Path) -> None:
    environ = {"ROLLCALL_NUM_GPUS": "8"}
    told = named("gpu.count").run(context(environ, dev=tmp_path))
    assert told.verdict is Verdict.FAIL
    assert "ROLLCALL_NUM_GPUS asks for 8" in told.evidence


def test_the_platforms_count_counts_where_nothing_is_said(tmp_path: Path) -> None:
    environ = {"RUNPOD_POD_ID": "abc", "RUNPOD_GPU_COUNT": "8"}
    dev = machines.nvidia_dev(tmp_path, 7)
    told = named("gpu.count").run(context(environ, dev=dev))
    assert "7 GPU device files, and RUNPOD_GPU_COUNT asks for 8" in told.evidence


def test_memory_that_an_earlier_life_of_this_node_holds_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Left:
        pid = 4242

    monkeypatch.setattr("entrypoint.processes.process.find_ours_or_orphaned", lambda _: [Left])
    dev = machines.nvidia_dev(tmp_path)
    told = named("gpu.memory").run(context(dev=dev, nvml=lambda: machines.nvml("h100-bad")))
    # GPU 3 of that machine is lost, which fails whatever holds the memory of the others.
    assert told.evidence == "GPU 3: does not answer (GPU is lost)"
    library = machines.nvml(
        "h100-good", nvmlDeviceGetMemoryInfo={"used": 1 << 36, "total": 1 << 37}
    )
    assert named("gpu.memory").run(context(dev=dev, nvml=lambda: library)).verdict is Verdict.WARN


def test_gpus_that_this_node_is_at_work_on_are_not_burnt_nor_is_their_memory_a_fault(
    tmp_path: Path,
) -> None:
    library = machines.nvml(
        "h100-good", nvmlDeviceGetMemoryInfo={"used": 1 << 36, "total": 1 << 37}
    )
    idle = context(dev=machines.nvidia_dev(tmp_path), nvml=lambda: library)
    assert named("gpu.memory").run(idle).verdict is Verdict.FAIL
    look = replace(idle, running_pid=4242)
    told = named("gpu.memory").run(look)
    assert told.verdict is Verdict.WARN
    assert told.evidence.endswith("of this node, which runs here (pid 4242)")
    (burn,) = (check for check in CHECKS if check.name == "gpu.burn")
    burnt = burn.run(look)
    assert burnt.verdict is Verdict.SKIP
    assert burnt.evidence == "this node is at work on them (pid 4242)"


def test_gpus_that_are_left_to_others_are_not_looked_at(tmp_path: Path) -> None:
    dev = machines.nvidia_dev(tmp_path)
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    told = named("gpu.memory").run(
        context(environ, dev=dev, nvml=lambda: machines.nvml("h100-bad"))
    )
    assert told.verdict is Verdict.PASS
    assert told.evidence.startswith("GPUs 0, 1: ")


class Gpus:
    """AMD's machine by its files or by its library, and the same faults in both."""

    def __init__(self, root: Path, by: str) -> None:
        self._root, self._by = root, by

    def machine(self, files: dict[str, Any], library: dict[str, Any]) -> Context:
        sys = machines.amd_sys(self._root, **files)
        dev = machines.amd_dev(self._root)
        smi: Any = machines.RecordedAmdSmi(**library)
        load = (lambda: smi) if self._by == "amdsmi" else (lambda: None)
        return context(dev=dev, sys=sys, amdsmi=load)

    def ask(self, name: str, *, files: dict[str, Any], library: dict[str, Any]) -> Result:
        return named(name).run(self.machine(files, library))


@pytest.fixture(params=["sysfs", "amdsmi"])
def mi300x(request: pytest.FixtureRequest, tmp_path: Path) -> Gpus:
    return Gpus(tmp_path, request.param)


def test_a_healthy_mi300x_gives_no_alarm(mi300x: Gpus) -> None:
    told = asked(mi300x.machine({}, {}))
    bad = [one for one in told.values() if one.verdict in (Verdict.WARN, Verdict.FAIL)]
    assert bad == []
    assert told["gpu.links"].evidence.endswith("7 of 7 links to other GPUs are up")


@pytest.mark.parametrize(
    ("name", "files", "library", "verdict", "evidence"),
    [
        (
            "gpu.ecc",
            {"ras__umc_err_count": "ue: 1\nce: 0"},
            {
                "amdsmi_get_gpu_total_ecc_count": {
                    "uncorrectable_count": 1,
                    "correctable_count": 3,
                }
            },
            "fail",
            "GPU 0: 1 uncorrected and 3 corrected",
        ),
        (
            "gpu.temperature",
            {"hwmon__hwmon5__temp2_input": 101000},
            {"amdsmi_get_temp_metric": {"current": 101, "critical": 100}},
            "fail",
            "GPU 0: 101 °C of 100 °C",
        ),
        (
            "gpu.pcie",
            {"current_link_width": 8},
            {
                "amdsmi_get_pcie_info": {
                    "pcie_static": {"max_pcie_width": 16, "pcie_interface_version": 5},
                    "pcie_metric": {"pcie_width": 8},
                }
            },
            "fail",
            "GPU 0: PCIe x8 of x16",
        ),
        (
            "gpu.partition",
            {"current_compute_partition": "CPX"},
            {"amdsmi_get_gpu_compute_partition": "CPX"},
            "warn",
            "GPU 0: the GPU is divided (CPX)",
        ),
        (
            "gpu.memory",
            {"mem_info_vram_used": 64 * 1024**3},
            {"amdsmi_get_gpu_memory_usage": 64 * 1024**3},
            "fail",
            "GPU 0: 64.0 GiB of 192.0 GiB are held",
        ),
    ],
)
def test_a_fault_of_an_mi300x_is_told_by_files_and_by_library_alike(
    mi300x: Gpus,
    name: str,
    files: dict[str, Any],
    library: dict[str, Any],
    verdict: str,
    evidence: str,
) -> None:
    result = mi300x.ask(name, files=files, library=library)
    assert result.verdict == verdict
    assert evidence in result.evidence


def test_an_xgmi_link_that_is_down_is_told_by_amdsmi(tmp_path: Path) -> None:
    status = {"status": ["X", *"UUUDUUU"], "total_links": 8}
    gpus = Gpus(tmp_path, "amdsmi")
    result = gpus.ask("gpu.links", files={}, library={"amdsmi_get_gpu_xgmi_link_status": status})
    assert result.verdict is Verdict.FAIL
    assert "GPU 0: 6 of 7 links" in result.evidence


def test_what_amdsmi_does_not_tell_a_guest_is_skipped(tmp_path: Path) -> None:
    untold = machines.AmdSmiError("not supported")
    gpus = Gpus(tmp_path, "amdsmi")
    result = gpus.ask("gpu.ecc", files={}, library={"amdsmi_get_gpu_total_ecc_count": untold})
    assert "GPUs 1, 2, 3, 4, 5, 6, 7" in result.evidence


BAD_MEMORY = {"uncorrectable_count": 1, "correctable_count": 0}


def test_checks_that_ask_amdsmi_at_once_do_not_shut_it_down_under_each_other(
    tmp_path: Path,
) -> None:
    smi = machines.RecordedAmdSmi(amdsmi_get_gpu_total_ecc_count=BAD_MEMORY)
    smi.call_seconds = 0.002
    where = context(
        dev=machines.amd_dev(tmp_path), sys=machines.amd_sys(tmp_path), amdsmi=lambda: smi
    )
    for _ in range(5):
        told = run._at_once(OF_GPUS, where)
        assert told["gpu.ecc"].verdict is Verdict.FAIL
        assert told["gpu.ecc"].evidence.startswith("GPU 0: 1 uncorrected")
        assert told["gpu.links"].evidence.endswith("7 of 7 links to other GPUs are up")
        assert not smi.running


def test_an_amdsmi_that_is_shut_down_under_a_check_is_no_gpu_that_does_not_tell(
    tmp_path: Path,
) -> None:
    shut_down = machines.AmdSmiError("not initialized", 32)
    gpus = Gpus(tmp_path, "amdsmi")
    result = gpus.ask("gpu.ecc", files={}, library={"amdsmi_get_gpu_total_ecc_count": shut_down})
    assert result.verdict is Verdict.FAIL
    assert "GPU 0: does not answer (amdsmi is not started: not initialized)" in result.evidence


def test_every_name_of_nvml_is_in_the_installed_package() -> None:
    """So that no call and no constant is invented; the record checks each call's arguments."""
    package = pytest.importorskip("pynvml")
    assert {name: getattr(package, name) for name in machines.CONSTANTS} == machines.CONSTANTS
    assert issubclass(package.NVMLError, Exception)
    sources = (inspect.getsource(module) for module in (nvidia_gpus, gpu_driver))
    names = {name for text in sources for name in re.findall(r"\bnvml\.((?:nvml|NVML)\w+)", text)}
    assert len(names) > 40
    assert [name for name in names if not hasattr(package, name)] == []


def test_every_recovery_action_of_the_package_has_words() -> None:
    package = pytest.importorskip("pynvml")
    from entrypoint.machine.gpus.nvidia import RECOVERY_ACTIONS

    prefix = "NVML_GPU_RECOVERY_ACTION_"
    numbers = {value for name, value in vars(package).items() if name.startswith(prefix)}
    assert numbers <= set(RECOVERY_ACTIONS)


def test_every_name_of_amdsmi_is_in_the_package_where_it_is_installed() -> None:
    try:
        package = importlib.import_module("amdsmi")
    except Exception as error:  # its own library is missing, for one
        pytest.skip(f"amdsmi cannot be imported: {error}")
    names = re.findall(r"\b(?:smi|library)\.((?:amdsmi|AmdSmi)\w+)", inspect.getsource(amd))
    assert len(names) > 10
    assert [name for name in names if not hasattr(package, name)] == []


def test_a_kernel_log_that_may_not_be_read_is_passed_over(tmp_path: Path) -> None:
    result = named("gpu.xid").run(context(dev=machines.nvidia_dev(tmp_path)))
    assert result.verdict is Verdict.SKIP
    assert "No such file" in result.evidence
