"""Can the job use the GPUs: driver, device files, variables, the kernel's log?"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from contract.durations import counted
from entrypoint.config.check_names import CheckName
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.config.settings import Settings
from entrypoint.machine import inventory, xid
from entrypoint.machine.gpus import amd, discover, nvidia
from entrypoint.machine.gpus.protocol import GpuError
from entrypoint.machine.kernel_log import KernelLog
from entrypoint.machine.view import Machine
from entrypoint.machine.xid import XidAction
from entrypoint.preflight import each_gpu
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict

HIDES_ALL = ("", "-1", "NoDevFiles", "void", "none")
FATAL = (XidAction.REBOOT_HOST, XidAction.RESTART_VM)
NVIDIA_RUNTIME = "start the container with NVIDIA's container runtime (--gpus all)"
AMD_GROUPS = "start the container with --group-add video --group-add render"


def cuda(context: Context) -> Finding:
    """The driver against the CUDA that torch was built with."""
    if why := context.why_no_gpu:
        return Finding(Verdict.SKIP, why)
    if discover.is_amd(context.machine):
        return Finding(Verdict.SKIP, "AMD's driver goes with any ROCm of its years")
    nvml = context.machine.nvml()
    if nvml is None:
        return Finding(Verdict.SKIP, "nvidia-ml-py is not installed, so the driver cannot be asked")
    try:
        with nvidia.opened(nvml):
            driver = nvml.nvmlSystemGetDriverVersion()
            major, rest = divmod(nvml.nvmlSystemGetCudaDriverVersion(), 1000)
    except (GpuError, nvml.NVMLError) as error:
        return Finding(Verdict.FAIL, str(error), "check the driver: nvidia-smi")
    return judge_cuda(driver, (major, rest // 10), inventory.cuda())


def judge_cuda(driver: str, can: tuple[int, int], built: str) -> Finding:
    """`can`: the newest CUDA that the driver runs; `built`: torch's, "" if unknown."""
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
    dev = context.machine.dev
    if why := context.why_no_gpu:
        return Finding(Verdict.SKIP, why)
    if discover.is_amd(context.machine):
        # ROCm opens all of them, also those of unused graphics; a forbidden one hides every GPU.
        needed = [dev / "kfd", *amd.render_nodes(dev, context.machine.sys)]
        remedy = AMD_GROUPS
    elif discover.is_wsl(context.machine):
        needed, remedy = [dev / "dxg"], NVIDIA_RUNTIME
    else:
        used = context.gpus
        numbered = [path for path in sorted(dev.glob("nvidia[0-9]*")) if _may_be(path, used)]
        needed = [dev / "nvidiactl", dev / "nvidia-uvm", *numbered]
        remedy = NVIDIA_RUNTIME
    closed = [path for path in needed if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        names = ", ".join(map(str, closed))
        evidence = f"user {os.geteuid()} cannot read and write {names}"
        return Finding(Verdict.FAIL, evidence, remedy)
    files = counted(len(needed), "device file")
    return Finding(Verdict.PASS, f"user {os.geteuid()} may open {files}")


def _may_be(device: Path, names: Sequence[str]) -> bool:
    """Whether a device file is needed for `names`. Unless all are numbers, every file may be."""
    by_number = all(name.isdigit() for name in names)
    return not by_number or device.name.removeprefix("nvidia") in names


def visible(context: Context) -> Finding:
    found, settings = discover.count(context.machine), context.settings
    if not found or settings.num_gpus == 0:
        return Finding(Verdict.SKIP, context.why_no_gpu)
    is_amd = discover.is_amd(context.machine)
    if RECIPES[settings.recipe].own_trainer and (kept := unassigned(context.environ)):
        evidence = f"{kept}={context.environ[kept]}: Ray gives no process GPUs of its own"
        return Finding(Verdict.FAIL, evidence, f"unset {kept}: all processes would use GPU 0")
    wanted = discover.requested(settings)
    return judge_visible(context.environ, found, is_amd=is_amd, wanted=wanted[0] if wanted else 0)


def unassigned(environ: Mapping[str, str]) -> str:
    """The variable that keeps Ray from giving each process its GPUs; "" if none does."""
    names = (f"RAY_EXPERIMENTAL_NOSET_{kind}_VISIBLE_DEVICES" for kind in ("CUDA", "HIP"))
    return next((name for name in names if environ.get(name, "").lower() in ("1", "true")), "")


def judge_visible(
    environ: Mapping[str, str], found: int, *, is_amd: bool, wanted: int = 0
) -> Finding:
    """`found`: how many GPUs there are; `wanted`: how many this node was given, 0 for unknown."""
    names = discover.AMD_VARIABLES if is_amd else ("CUDA_VISIBLE_DEVICES",)
    given = {name: environ[name] for name in names if name in environ}
    evidence = ", ".join(f"{name}={value}" for name, value in given.items())
    hip = given.get("HIP_VISIBLE_DEVICES")
    if hip is not None and not discover.same(hip, given.get("CUDA_VISIBLE_DEVICES", hip)):
        remedy = "set HIP_VISIBLE_DEVICES alone: these two name different GPUs"
        return Finding(Verdict.FAIL, evidence, remedy)
    for name, value in given.items():
        if value.strip() in HIDES_ALL:
            remedy = f"unset {name}; for a node of CPUs set ROLLCALL_NUM_GPUS=0, too"
            return Finding(Verdict.WARN, f"{name}={value} hides every GPU: none is used", remedy)
    left = found
    for name in discover.hiding_variables(environ, is_amd=is_amd):
        value = given[name]
        numbers = [int(number) for number in value.split(",") if number.strip().isdigit()]
        if beyond := [str(number) for number in numbers if number >= left]:
            which = f"{left}" if left == found else f"the {left} that ROCR_VISIBLE_DEVICES leaves"
            problem = f"{evidence}: there is no GPU {', '.join(beyond)}, of {which}"
            return Finding(Verdict.FAIL, problem, f"unset {name}, or name GPUs below {left}")
        left = len(discover.visible({name: value}, left, is_amd=is_amd))
    if given and left < found and left != wanted:
        return Finding(Verdict.WARN, f"{evidence} shows {left} of {counted(found, 'GPU')}")
    return Finding(Verdict.PASS, evidence or "no variable hides a GPU")


def xids(context: Context) -> Finding:
    if why := context.why_no_gpu:
        return Finding(Verdict.SKIP, why)
    if discover.is_amd(context.machine):
        return Finding(Verdict.SKIP, "Xid errors are NVIDIA's")
    try:
        with KernelLog(context.machine.dev / "kmsg") as log:
            messages = log.read()
    except OSError as error:
        return Finding(Verdict.SKIP, f"the kernel's log cannot be read here: {error.strerror}")
    return judge_xids(messages, is_ours(context.settings, context.machine))


def is_ours(settings: Settings, machine: Machine) -> Callable[[str], bool]:
    """Whether a PCI address may belong to a GPU that this node uses.

    An address that NVML does not know is that of a lost GPU if there are more device files than
    GPUs that answer, else that of a GPU outside this container.
    """
    used: dict[str, bool] = {}
    if nvml := machine.nvml():
        with suppress(GpuError, nvml.NVMLError), nvidia.opened(nvml):
            used = nvidia.addresses(nvml, discover.of_node(settings, machine))
    lost = len(used) < discover.count(machine)
    return lambda address: used.get(address, lost)


def judge_xids(messages: str, is_ours: Callable[[str], bool] = lambda address: True) -> Finding:
    """`messages`: lines of the kernel's log since the machine was booted."""
    errors = [error for line in messages.splitlines() if (error := xid.parse(line))]
    found = [error for error in errors if is_ours(error.address)]
    serious = Counter(error for error in found if error.action not in xid.HARMLESS)
    if not serious:
        evidence = "no Xid but those that programs cause" if found else "no Xid"
        others = " on the GPUs that this node uses" if len(found) < len(errors) else ""
        return Finding(Verdict.PASS, evidence + others)
    evidence = ", ".join(
        f"Xid {error.number} on {error.bus} ({times} times)" for error, times in serious.items()
    )
    actions = list(dict.fromkeys(error.action for error in serious))
    verdict = Verdict.FAIL if any(action in FATAL for action in actions) else Verdict.WARN
    return Finding(verdict, evidence, "; ".join(actions))


CHECKS = (
    Check(
        CheckName.GPU_DRIVER,
        "does the driver run the CUDA that torch was built for?",
        cuda,
        timeout=each_gpu.NVML_TIMEOUT,
    ),
    Check(CheckName.GPU_DEVICES, "may this user open the GPUs' device files?", devices),
    Check(
        CheckName.GPU_VISIBLE,
        "do the variables that hide GPUs agree with each other and with the machine?",
        visible,
    ),
    Check(
        CheckName.GPU_XID,
        "did the driver report errors since the machine was booted?",
        xids,
        timeout=each_gpu.NVML_TIMEOUT,
    ),
)
