"""What is made of a GPU's name, variables, driver, errors and speed: decisions without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from contract.resources import GPU_MODELS, gpu_model
from entrypoint.config.read import read_settings
from entrypoint.config.role import Head
from entrypoint.machine.view import Machine
from entrypoint.preflight import gpu_burn, gpu_driver
from entrypoint.preflight.check import Context
from entrypoint.preflight.verdict import Verdict
from tests.support import machines

HEAD = Head(1, 1, "a test")


def context() -> Context:
    return Context(HEAD, read_settings({}))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("NVIDIA GeForce GTX 1080", None),
        ("NVIDIA GH200 480GB", None),  # its parts are others than those of H200
        ("NVIDIA GB200", None),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
    ],
)
def test_a_drivers_name_finds_its_model(name: str, model: str | None) -> None:
    found = gpu_model(name)
    assert (found and found.name) == model


def test_no_model_of_the_table_is_hidden_by_one_before_it() -> None:
    assert [gpu_model(one.name) for one in GPU_MODELS] == list(GPU_MODELS)


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ([], "pass"),
        (["NVRM: Xid (PCI:0000:1b:00): 13, Graphics Exception"], "pass"),
        (["NVRM: Xid (PCI:0000:1b:00): 95, uncontained ECC error"], "warn"),
        (["NVRM: Xid (PCI:0000:1b:00): 74, NVLink error"], "warn"),
        (["NVRM: Xid (PCI:0000:1b:00): 999, of a later driver"], "warn"),
        (["NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."] * 2, "fail"),
    ],
)
def test_an_xid_is_judged_by_what_the_catalogue_asks_for(lines: list[str], verdict: str) -> None:
    finding = gpu_driver.judge_xids("\n".join(f"4,77,1234,-;{line}" for line in lines))
    assert finding.verdict == verdict
    assert ("Xid 79 on 0000:1b:00 (2 times)" in finding.evidence) == (verdict == "fail")


@pytest.mark.parametrize(
    ("environ", "is_amd", "verdict"),
    [
        ({}, False, "pass"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, False, "pass"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, False, "warn"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, False, "warn"),
        ({"CUDA_VISIBLE_DEVICES": "7,8"}, False, "fail"),
        ({"CUDA_VISIBLE_DEVICES": ""}, False, "warn"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, False, "warn"),
        ({"HIP_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, True, "pass"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, True, "fail"),
        ({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0, 1"}, True, "warn"),
        ({"ROCR_VISIBLE_DEVICES": "0"}, True, "warn"),
        ({"ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, True, "pass"),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "4,5"}, True, "warn"),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, True, "warn"),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "4"}, True, "fail"),
        ({"ROCR_VISIBLE_DEVICES": "0"}, False, "pass"),
    ],
)
def test_variables_that_hide_gpus_are_judged_together(
    environ: dict[str, str], is_amd: bool, verdict: str
) -> None:
    assert gpu_driver.judge_visible(environ, 8, is_amd=is_amd).verdict == verdict


def test_a_number_beyond_what_rocrs_variable_leaves_is_named() -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "4"}
    told = gpu_driver.judge_visible(environ, 8, is_amd=True)
    assert told.evidence.endswith("no GPU 4, of the 2 that ROCR_VISIBLE_DEVICES leaves")


@pytest.mark.parametrize(
    ("can", "built", "verdict"),
    [((13, 0), "13.0.48", "pass"), ((12, 2), "12.8.90", "pass"), ((12, 8), "13.0.48", "fail")],
)
def test_a_driver_runs_any_cuda_of_its_major_version(
    can: tuple[int, int], built: str, verdict: str
) -> None:
    assert gpu_driver.judge_cuda("580.95", can, built).verdict == verdict


ROW = {"model": "NVIDIA H100 80GB HBM3", "tflops": 700.0, "copy_gbs": 2900.0, "correct": True}


@pytest.mark.parametrize(
    ("changes", "verdict", "says"),
    [
        ({}, "pass", "71% and 87% of H100's peaks"),
        ({"tflops": 350.0}, "warn", "35%"),
        ({"tflops": 120.0}, "fail", "12%"),
        ({"copy_gbs": 1000.0}, "fail", "30%"),
        ({"correct": False}, "fail", "a wrong product"),
        ({"model": "NVIDIA Unknown"}, "pass", "does not have this model"),
    ],
)
def test_a_burn_is_judged_against_the_models_peaks(
    changes: dict[str, Any], verdict: str, says: str
) -> None:
    finding = gpu_burn.judge(0, ROW | changes)
    assert finding.verdict == verdict
    assert says in finding.evidence


PART = {"model": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "tflops": 90.0, "copy_gbs": 380.0}


@pytest.mark.parametrize(("correct", "verdict"), [(True, "pass"), (False, "fail")])
def test_of_a_part_of_a_gpu_the_product_is_judged_and_no_speed(correct: bool, verdict: str) -> None:
    finding = gpu_burn.judge(0, ROW | PART | {"correct": correct})
    assert finding.verdict == verdict
    assert ("only the product is judged" in finding.evidence) == correct


@pytest.mark.parametrize(("mode", "verdict"), [("CPX", "pass"), ("SPX", "fail")])
def test_a_part_of_amds_gpu_has_the_name_of_the_whole(
    mode: str, verdict: str, tmp_path: Path
) -> None:
    row = {"model": "AMD Instinct MI300X OAM", "tflops": 90.0, "copy_gbs": 380.0, "correct": True}
    where = Context(
        HEAD,
        read_settings({}),
        Machine(
            dev=machines.amd_dev(tmp_path, 1),
            sys=machines.amd_sys(tmp_path, 1, current_compute_partition=mode),
            amdsmi=lambda: None,
        ),
    )
    said = [sys.executable, "-S", "-c", f"print({json.dumps([row])!r})"]
    assert gpu_burn.run(said, where).verdict == verdict


@pytest.mark.parametrize(
    ("script", "verdict", "says"),
    [
        (f"print({json.dumps([ROW])!r})", "pass", "700 TFLOP/s"),
        ("raise SystemExit('torch sees no GPU')", "fail", "ended with 1: torch sees no GPU"),
        ("print('[{}]')", "fail", "ended with 0"),
    ],
)
def test_what_the_burns_process_prints_is_its_finding(script: str, verdict: str, says: str) -> None:
    finding = gpu_burn.run([sys.executable, "-S", "-c", script], context())
    assert finding.verdict == verdict
    assert says in finding.evidence


def test_a_burn_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_burn, "TIMEOUT", 5.1)
    finding = gpu_burn.run(["sleep", "60"], context())
    assert (finding.verdict, finding.evidence) == (Verdict.FAIL, "the burn hangs")


def test_the_burn_itself_computes_right_and_tells_its_rates() -> None:
    import torch

    from trainer.cluster.diagnostics.gpu_burn import burn as load

    row = load(torch.device("cpu"), size=64, copied=1 << 16, seconds=0.01)
    assert row["correct"]
    assert row["tflops"] > 0
    assert row["copy_gbs"] > 0
    assert gpu_burn.judge(0, row).verdict is Verdict.PASS
