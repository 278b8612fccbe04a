"""What stands between the GPUs and the job: driver, device files, variables, the kernel's log."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from entrypoint import xid
from entrypoint.preflight import gpu, nvidia, versions
from entrypoint.preflight.check import About, Check, Context, Finding, Verdict
from entrypoint.preflight.gpus import GpuError
from entrypoint.xid import XidAction

HIDES_ALL = ("", "-1", "NoDevFiles", "void", "none")
HARMLESS = (XidAction.RESTART_PROGRAM, XidAction.IGNORE)
FATAL = (XidAction.REBOOT_HOST, XidAction.RESTART_VM)
AMD_GROUPS = "start the container with --group-add video --group-add render"


def cuda(context: Context) -> Finding:
    """The driver against the CUDA that torch was built with."""
    if not gpu.count(context.dev):
        return Finding(Verdict.SKIP, gpu.NO_GPU)
    if gpu.is_amd(context.dev):
        return Finding(Verdict.SKIP, "AMD's driver goes with any ROCm of its years")
    nvml = context.nvml()
    if nvml is None:
        return Finding(Verdict.SKIP, "nvidia-ml-py is not installed, so the driver cannot be asked")
    try:
        with nvidia.opened(nvml):
            driver = nvml.nvmlSystemGetDriverVersion()
            major, rest = divmod(nvml.nvmlSystemGetCudaDriverVersion(), 1000)
    except (GpuError, nvml.NVMLError) as error:
        return Finding(Verdict.FAIL, str(error), "check the driver: nvidia-smi")
    return judge_cuda(driver, (major, rest // 10), versions.cuda())


def judge_cuda(driver: str, can: tuple[int, int], built: str) -> Finding:
    """`can`: the newest CUDA that the driver runs; `built`: torch's, "" where it is unknown."""
    evidence = f"driver {driver} runs CUDA {can[0]}.{can[1]}"
    if not built:
        return Finding(Verdict.PASS, evidence)
    evidence += f", torch is built for {built}"
    if int(built.partition(".")[0]) > can[0]:
        remedy = f"update the driver, or use an image for CUDA {can[0]}"
        return Finding(Verdict.FAIL, evidence, remedy)
    return Finding(Verdict.PASS, evidence)


def devices(context: Context) -> Finding:
    """May this user open what CUDA and ROCm open?"""
    dev = context.dev
    if not gpu.count(dev):
        return Finding(Verdict.SKIP, gpu.NO_GPU)
    if gpu.is_amd(dev):
        needed = [dev / "kfd", *sorted(dev.glob("dri/renderD*"))]
        remedy = AMD_GROUPS
    else:
        numbered = list(dev.glob("nvidia[0-9]*"))
        needed = [dev / "nvidiactl", dev / "nvidia-uvm", *sorted(numbered)]
        remedy = "start the container with NVIDIA's container runtime (--gpus all)"
    closed = [path for path in needed if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        names = ", ".join(map(str, closed))
        evidence = f"user {os.geteuid()} cannot read and write {names}"
        return Finding(Verdict.FAIL, evidence, remedy)
    return Finding(Verdict.PASS, f"user {os.geteuid()} may open all {len(needed)} device files")


def visible(context: Context) -> Finding:
    found = gpu.count(context.dev)
    if not found:
        return Finding(Verdict.SKIP, gpu.NO_GPU)
    return judge_visible(context.environ, found, is_amd=gpu.is_amd(context.dev))


def judge_visible(environ: Mapping[str, str], found: int, *, is_amd: bool) -> Finding:
    """`found`: how many GPUs there are."""
    names = ("HIP", "ROCR", "CUDA") if is_amd else ("CUDA",)
    given = {
        variable: environ[variable]
        for variable in (f"{name}_VISIBLE_DEVICES" for name in names)
        if variable in environ
    }
    evidence = ", ".join(f"{name}={value}" for name, value in given.items())
    hip = given.get("HIP_VISIBLE_DEVICES")
    if is_amd and (other := given.get("CUDA_VISIBLE_DEVICES", hip)) != hip and hip is not None:
        remedy = f"set HIP_VISIBLE_DEVICES alone: Ray refuses to start with another ({other})"
        return Finding(Verdict.FAIL, evidence, remedy)
    if "ROCR_VISIBLE_DEVICES" in given and hip is None:
        remedy = "set HIP_VISIBLE_DEVICES instead: Ray refuses to start with ROCR's alone"
        return Finding(Verdict.FAIL, evidence, remedy)
    for name, value in given.items():
        if value.strip() in HIDES_ALL:
            return Finding(Verdict.FAIL, f"{name}={value} hides every GPU", f"unset {name}")
        numbers = [int(one) for one in value.split(",") if one.strip().isdigit()]
        if beyond := [str(one) for one in numbers if one >= found]:
            problem = f"{evidence}: there is no GPU {', '.join(beyond)}, of {found}"
            return Finding(Verdict.FAIL, problem, f"unset {name}, or name GPUs below {found}")
        if numbers and len(numbers) < found:
            return Finding(Verdict.WARN, f"{evidence} shows {len(numbers)} of {found} GPUs")
    return Finding(Verdict.PASS, evidence or "no variable hides a GPU")


def xids(context: Context) -> Finding:
    if not gpu.count(context.dev):
        return Finding(Verdict.SKIP, gpu.NO_GPU)
    if gpu.is_amd(context.dev):
        return Finding(Verdict.SKIP, "Xid errors are NVIDIA's")
    try:
        messages = _kernel_messages(context.dev / "kmsg")
    except OSError as error:
        return Finding(Verdict.SKIP, f"the kernel's log cannot be read here: {error.strerror}")
    return judge_xids(messages)


def judge_xids(messages: str) -> Finding:
    """`messages`: lines of the kernel's log since the machine was booted."""
    found = [one for line in messages.splitlines() if (one := xid.parse(line))]
    serious = Counter(one for one in found if one.action not in HARMLESS)
    if not serious:
        evidence = "no Xid but those that programs cause" if found else "no Xid"
        return Finding(Verdict.PASS, evidence)
    evidence = ", ".join(
        f"Xid {one.number} on {one.bus} ({times} times)" for one, times in serious.items()
    )
    actions = list(dict.fromkeys(one.action for one in serious))
    verdict = Verdict.FAIL if any(one in FATAL for one in actions) else Verdict.WARN
    return Finding(verdict, evidence, "; ".join(actions))


def _kernel_messages(path: Path) -> str:
    """What the kernel's log holds now, without waiting for more. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    records = []
    try:
        while True:
            try:
                record = os.read(descriptor, 8192)
            except BrokenPipeError:  # overwritten before it was read: the next one comes
                continue
            if not record:
                break
            records.append(record.decode(errors="replace"))
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
    return "".join(records)


CHECKS = (
    Check(
        "gpu.driver",
        "does the driver run the CUDA that torch was built for?",
        cuda,
        About(
            evidence="the driver's version and newest CUDA, against that of torch's packages",
            threshold="fails where torch's major version is above the driver's",
            source="CUDA compatibility guide: within a major version any driver of it will do",
            remedy="update the driver, or use an image for the driver's CUDA",
        ),
        timeout=gpu.NVML_TIMEOUT,
    ),
    Check(
        "gpu.devices",
        "may this user open the GPUs' device files?",
        devices,
        About(
            evidence="permissions of `/dev/nvidia*`, or of `/dev/kfd` and `/dev/dri/renderD*`",
            threshold="fails where one cannot be read and written",
            source="CUDA and ROCm then show no GPU at all, without a reason",
            remedy=f"`--gpus all`; on AMD {AMD_GROUPS.partition('with ')[2]}",
        ),
    ),
    Check(
        "gpu.visible",
        "do the variables that hide GPUs agree with each other and with the machine?",
        visible,
        About(
            evidence="`CUDA_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES`, `ROCR_VISIBLE_DEVICES`",
            threshold="fails where all GPUs are hidden, one named is not there, HIP's and CUDA's "
            "differ, or ROCR's is set alone; warns where some are hidden",
            source="Ray 2.55 refuses to start in the latter two cases",
            remedy="on AMD set `HIP_VISIBLE_DEVICES` alone, elsewhere none of them",
        ),
    ),
    Check(
        "gpu.xid",
        "did the driver report errors since the machine was booted?",
        xids,
        About(
            evidence="`NVRM: Xid` lines of the kernel's log, where `/dev/kmsg` can be read",
            threshold="fails for what needs a reboot, warns for what needs a reset or a look, "
            "passes over what a program of its own caused",
            source="NVIDIA's Xid catalogue",
            remedy="what the catalogue says: reset, reboot, or look further",
        ),
    ),
)
