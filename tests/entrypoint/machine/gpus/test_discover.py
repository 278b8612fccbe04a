"""GPUs that a node is not to use: neither offered to Ray nor examined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.machine.gpus import discover
from entrypoint.machine.gpus.amd import SysfsGpu
from entrypoint.machine.inventory import inventory
from entrypoint.machine.view import Machine
from entrypoint.node import ray_command_line
from entrypoint.preflight import gpu_burn, gpu_health
from entrypoint.preflight.check import Context, Report, Result
from entrypoint.preflight.run import CHECKS
from entrypoint.preflight.verdict import Verdict
from tests.support import machines

HEAD = Head(1, 1, "a test")
OF_GPUS = [check for check in CHECKS if check.name.startswith("gpu.") and not check.loads]
FULL = {"nvmlDeviceGetMemoryInfo": {"used": 60 << 30, "total": 80 << 30}}
SLURM = {"SLURM_NODEID": "0", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "4"}
MIG = "MIG-5f1a8c9e-0000-0000-0000-000000000000"


def machine(root: Path, environ: dict[str, str], **given: Any) -> Context:
    """Eight GPUs, of which 4 to 7 are full of another tenant's job."""
    others = {str(index): FULL for index in range(4, 8)}
    given.setdefault("nvml", lambda: machines.nvml("h100-good", others))
    return Context(
        HEAD,
        read_settings(environ),
        Machine(dev=machines.nvidia_dev(root), amdsmi=lambda: None, **given),
    )


def asked(where: Context) -> dict[str, Result]:
    return {check.name: check.run(where) for check in OF_GPUS}


def told_to_ray(where: Context) -> list[str]:
    gpus = int(inventory(where.settings, machine=where.machine)["gpus"])
    words = ray_command_line.common_arguments(where.settings, "10.0.0.2", gpus)
    return [word for word in words if word.startswith("--num-gpus")]


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 4),
        ({"CUDA_VISIBLE_DEVICES": machines.uuid(2)}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f933"}, 1),
        ({"CUDA_VISIBLE_DEVICES": MIG}, 1),
        ({"CUDA_VISIBLE_DEVICES": "2,1,-1,0"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"ROLLCALL_NUM_GPUS": "0"}, 0),
        ({"ROLLCALL_NUM_GPUS": "0", "CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"ROLLCALL_NUM_GPUS": "2"}, 2),
        ({"ROLLCALL_NUM_GPUS": "2", "CUDA_VISIBLE_DEVICES": "1,2,6"}, 2),
        ({"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "0"}, 1),
    ],
)
def test_a_node_offers_what_it_is_shown_and_no_other_gpu_fails_it(
    tmp_path: Path, environ: dict[str, str], gpus: int
) -> None:
    where = machine(tmp_path, environ)
    assert told_to_ray(where) == [f"--num-gpus={gpus}"]
    results = list(asked(where).values())
    assert Report(where.settings.preflight, results).fails == ()


def test_without_a_variable_every_gpu_is_offered_and_a_full_one_fails(tmp_path: Path) -> None:
    where = machine(tmp_path, {})
    assert told_to_ray(where) == ["--num-gpus=8"]
    assert asked(where)["gpu.memory"].verdict is Verdict.FAIL


def test_a_node_of_cpus_asks_nothing_of_the_machines_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        raise AssertionError

    monkeypatch.setattr(gpu_burn, "run", lambda *_: load())
    where = machine(tmp_path, {"ROLLCALL_NUM_GPUS": "0"}, nvml=load)
    told = [check.run(where) for check in CHECKS if check.name.startswith("gpu.")]
    assert {one.verdict for one in told} == {Verdict.SKIP}
    assert {one.evidence for one in told} == {"this node uses no GPU (ROLLCALL_NUM_GPUS=0)"}


def test_a_variable_that_hides_every_gpu_is_a_warning_and_nothing_else(tmp_path: Path) -> None:
    told = asked(machine(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}))
    not_skipped = {name for name, one in told.items() if one.verdict is not Verdict.SKIP}
    assert not_skipped == {"gpu.visible"}
    assert told["gpu.visible"].verdict is Verdict.WARN
    assert "ROLLCALL_NUM_GPUS=0" in told["gpu.visible"].remedy


def test_as_many_gpus_as_the_platform_gave_are_no_warning(tmp_path: Path) -> None:
    environ = {**SLURM, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    told = asked(machine(tmp_path, environ))["gpu.visible"]
    assert told.verdict is Verdict.PASS, told


def test_more_gpus_than_are_shown_cannot_be_offered(tmp_path: Path) -> None:
    environ = {"ROLLCALL_NUM_GPUS": "4", "CUDA_VISIBLE_DEVICES": "0,1"}
    told = asked(machine(tmp_path, environ))["gpu.count"]
    assert told.verdict is Verdict.FAIL
    assert "ROLLCALL_NUM_GPUS offers 4" in told.evidence


def test_a_gpu_that_is_named_by_its_id_is_examined(tmp_path: Path) -> None:
    told = asked(machine(tmp_path, {"CUDA_VISIBLE_DEVICES": machines.uuid(5)}))
    assert told["gpu.memory"].verdict is Verdict.FAIL
    assert told["gpu.memory"].evidence.startswith("GPU 5: 60.0 GiB")


def test_a_lost_gpu_is_told_where_an_id_fits_none_that_answers(tmp_path: Path) -> None:
    where = machine(
        tmp_path,
        {"CUDA_VISIBLE_DEVICES": machines.uuid(3)},
        nvml=lambda: machines.nvml("h100-bad"),
    )
    assert "GPU 3: does not answer" in asked(where)["gpu.count"].evidence


FIRST, LAST, NOT_THERE = "0000:1b:00", "0000:DF:00", "0000:0a:00"
LOST = {"7": {"nvmlDeviceGetHandleByIndex": {"error": 15}}}


def xids(where: Context, address: str, number: int = 79) -> Verdict:
    """Of the check, where the kernel's log has a grave Xid on that PCI address."""
    line = f"4,77,1234,-;NVRM: Xid (PCI:{address}): {number}, GPU has fallen off the bus."
    (where.machine.dev / "kmsg").write_text(f"{line}\n")
    return asked(where)["gpu.xid"].verdict


@pytest.mark.parametrize(
    ("environ", "address", "verdict"),
    [
        ({}, LAST, Verdict.FAIL),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, FIRST, Verdict.FAIL),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, f"{FIRST}.0", Verdict.FAIL),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, LAST, Verdict.PASS),
        ({"CUDA_VISIBLE_DEVICES": machines.uuid(7)}, LAST, Verdict.FAIL),
        ({"CUDA_VISIBLE_DEVICES": machines.uuid(6)}, LAST, Verdict.PASS),
        ({"ROLLCALL_NUM_GPUS": "2"}, LAST, Verdict.PASS),
        ({}, NOT_THERE, Verdict.PASS),  # every device file has its GPU: it is another tenant's
    ],
)
def test_an_xid_counts_on_the_gpus_that_a_node_uses(
    tmp_path: Path, environ: dict[str, str], address: str, verdict: Verdict
) -> None:
    assert xids(machine(tmp_path, environ), address) is verdict


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}])
def test_an_xid_of_a_gpu_that_nobody_knows_any_more_counts(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    where = machine(tmp_path, environ, nvml=lambda: machines.nvml("h100-good", LOST))
    assert xids(where, LAST) is Verdict.FAIL
    assert xids(where, "0000:43:00") is Verdict.FAIL
    known = Verdict.PASS if environ else Verdict.FAIL
    assert xids(where, "0000:52:00") is known


@pytest.mark.parametrize("library", [None, machines.RecordedNvml({"nvmlInit": {"error": 9}})])
def test_where_nvml_does_not_answer_every_xid_counts(tmp_path: Path, library: Any) -> None:
    where = machine(tmp_path, {"CUDA_VISIBLE_DEVICES": "0"}, nvml=lambda: library)
    assert xids(where, LAST) is Verdict.FAIL


def test_of_a_divided_gpu_the_memory_of_the_nodes_own_part_counts(tmp_path: Path) -> None:
    """The other parts belong to other tenants."""
    devices = {"3": FULL, f"3/{MIG}": {}}
    where = machine(
        tmp_path,
        {"CUDA_VISIBLE_DEVICES": MIG},
        nvml=lambda: machines.nvml("h100-good", devices),
    )
    told = gpu_health.held_memory(where)
    assert (told.verdict, told.evidence) == (Verdict.PASS, "GPU 3: less than 1.0 GiB is held")


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"HIP_VISIBLE_DEVICES": "1,3"}, ["1", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, ["2"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, ["0"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, ["5"]),
        ({"ROCR_VISIBLE_DEVICES": "6"}, ["6"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "4,5"}, ["4", "5"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_amds_variables_apply_as_ray_reads_them(
    tmp_path: Path, environ: dict[str, str], names: list[str]
) -> None:
    assert discover.visible(environ, 8, is_amd=True) == names
    node = Machine(dev=machines.amd_dev(tmp_path), sys=machines.amd_sys(tmp_path))
    assert discover.of_node(read_settings(environ), node) == names


def test_the_graphics_of_another_maker_beside_amds_gpus_are_no_gpu(tmp_path: Path) -> None:
    dev, sys = machines.amd_dev(tmp_path, 4), machines.amd_sys(tmp_path, 4, vendor="0x8086")
    (sys / "class/drm/renderD131/device/vendor").unlink()  # a part of a divided GPU has none
    where = Context(HEAD, read_settings({}), Machine(dev=dev, sys=sys, amdsmi=lambda: None))
    assert told_to_ray(where) == ["--num-gpus=3"]
    assert asked(where)["gpu.count"].verdict is Verdict.PASS
    assert asked(where)["gpu.devices"].evidence.endswith("may open 4 device files")  # and kfd
    with discover.opened(where.settings, where.machine) as gpus:
        assert [str(gpu.device)[-10:-7] for gpu in gpus if isinstance(gpu, SysfsGpu)] == [
            "129",
            "130",
            "131",
        ]


SET_ASIDE: dict[str, str | int] = {"mem_info_vram_total": 512 * 1024**2, "product_name": ""}


@pytest.mark.parametrize(
    ("environ", "names", "to_ray"),
    [
        ({}, ["1"], "1"),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["1"], "1"),
        ({"HIP_VISIBLE_DEVICES": "0"}, ["0"], "0"),  # somebody wants it
    ],
)
def test_integrated_graphics_count_only_if_a_variable_names_them(
    tmp_path: Path, environ: dict[str, str], names: list[str], to_ray: str
) -> None:
    dev, sys = machines.amd_dev(tmp_path, 2), machines.amd_sys(tmp_path, 2, **SET_ASIDE)
    where = Context(HEAD, read_settings(environ), Machine(dev=dev, sys=sys, amdsmi=lambda: None))
    assert where.gpus == names
    assert told_to_ray(where) == ["--num-gpus=1"]
    assert discover.environment(where.settings, where.machine)["CUDA_VISIBLE_DEVICES"] == to_ray
    assert discover.of_driver(where.settings, where.machine)["HIP_VISIBLE_DEVICES"] == to_ray
    assert Report(where.settings.preflight, list(asked(where).values())).fails == ()


def test_a_machine_with_integrated_graphics_alone_is_a_node_of_cpus(tmp_path: Path) -> None:
    dev, sys = machines.amd_dev(tmp_path, 1), machines.amd_sys(tmp_path, 1, **SET_ASIDE)
    where = Context(HEAD, read_settings({}), Machine(dev=dev, sys=sys, amdsmi=lambda: None))
    assert told_to_ray(where) == ["--num-gpus=0"]
    assert "integrated graphics" in asked(where)["gpu.present"].evidence
    assert discover.environment(where.settings, where.machine)["CUDA_VISIBLE_DEVICES"] == "-1"


def test_an_mi300a_has_no_memory_of_its_own_and_counts(tmp_path: Path) -> None:
    sys = machines.amd_sys(tmp_path, 4, mem_info_vram_total=0)
    node = Machine(dev=machines.amd_dev(tmp_path, 4), sys=sys, amdsmi=lambda: None)
    assert discover.of_node(read_settings({}), node) == ["0", "1", "2", "3"]
    assert discover.environment(read_settings({}), node) == {}


def test_the_gpus_of_wsl_are_those_that_nvml_counts(tmp_path: Path) -> None:
    dev = machines.write(tmp_path / "dev", {"dxg": ""})
    where = Context(
        HEAD, read_settings({}), Machine(dev=dev, nvml=lambda: machines.nvml("h100-good"))
    )
    assert told_to_ray(where) == ["--num-gpus=8"]
    assert asked(where)["gpu.devices"].evidence.endswith("may open 1 device file")
    assert asked(where)["gpu.count"].verdict is Verdict.PASS
    assert discover.count(Machine(dev=dev, nvml=lambda: None)) == 0


@pytest.mark.parametrize("kind", ["CUDA", "HIP"])
def test_a_variable_that_keeps_ray_from_assigning_gpus_fails_our_trainer_alone(
    tmp_path: Path, kind: str
) -> None:
    environ = {f"RAY_EXPERIMENTAL_NOSET_{kind}_VISIBLE_DEVICES": "1"}
    told = asked(machine(tmp_path, environ))["gpu.visible"]
    assert told.verdict is Verdict.FAIL
    assert told.remedy.startswith(f"unset RAY_EXPERIMENTAL_NOSET_{kind}_VISIBLE_DEVICES")
    other = {"ROLLCALL_RECIPE": "command", "ROLLCALL_JOB": "true"}
    assert asked(machine(tmp_path, environ | other))["gpu.visible"].verdict is Verdict.PASS


def test_hips_variable_means_nothing_to_nvidias_gpus() -> None:
    environ = {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}
    assert len(discover.visible(environ, 8, is_amd=False)) == 8
