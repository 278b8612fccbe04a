"""Are this node's GPUs present, healthy, cool, on full PCIe width, and free?"""

from __future__ import annotations

from contract import durations
from contract.resources import gpu_model
from entrypoint.config.check_names import CheckName
from entrypoint.machine.gpus import discover
from entrypoint.machine.gpus.protocol import Gpu
from entrypoint.machine.limits import GIB, sized
from entrypoint.preflight import each_gpu
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict

MOST_REMAPPED_ROWS = 512
HOTTEST = 90.0
"""Degrees Celsius for a model, or a driver, that gives no limit of its own."""
WARM = 5.0
"""Degrees below the limit from which on a GPU counts as warm."""
HELD_WARNS, HELD_FAILS = 1 * GIB, 0.1
"""Memory that others hold: bytes from which on it warns, share of all from which on it fails."""


def present(context: Context) -> Finding:
    if why := context.why_no_gpu:
        return Finding(Verdict.SKIP, why)
    return Finding(Verdict.PASS, _files(context))


def _files(context: Context) -> str:
    found, used = discover.count(context.machine), len(context.gpus)
    files = durations.counted(found, "GPU device file")
    return files + (f", this node uses {durations.counted(used, 'GPU')}" if used != found else "")


def counted(context: Context) -> Finding:
    """Device files, what the driver answers for, and what is asked."""
    files, wanted, why = (
        discover.count(context.machine),
        discover.requested(context.settings),
        context.why_no_gpu,
    )
    evidence = _files(context)
    remedy = "give the container its GPUs (--gpus all; --device /dev/kfd --device /dev/dri)"
    if wanted and wanted[0] > files:
        return Finding(Verdict.FAIL, f"{evidence}, and {wanted[1]} asks for {wanted[0]}", remedy)
    offered, used = context.settings.num_gpus, len(context.gpus)
    if offered is not None and offered > used:
        remedy = "offer as many as the variables that hide GPUs show, or unset these"
        evidence += f", and ROLLCALL_NUM_GPUS offers {offered}: Ray does not start so"
        return Finding(Verdict.FAIL, evidence, remedy)
    if why:
        return Finding(Verdict.SKIP, why)
    found = each_gpu.each(context, lambda gpu: Finding(Verdict.PASS, gpu.model()))
    return Finding(found.verdict, f"{evidence}; {found.evidence}", found.remedy)


def recovery(gpu: Gpu) -> Finding | None:
    action = gpu.recovery_action()
    if action is None:
        return None
    if action:
        return Finding(Verdict.FAIL, f"the driver asks to {action}", f"{action}, or another node")
    return Finding(Verdict.PASS, "the driver asks for nothing")


def ecc(gpu: Gpu) -> Finding | None:
    errors = gpu.memory_errors()
    if errors is None:
        return None
    evidence = f"{errors.uncorrected} uncorrected and {errors.corrected} corrected memory errors"
    if errors.uncorrected:
        return Finding(Verdict.FAIL, evidence, "reset the GPU; replace it where they come again")
    return Finding(Verdict.PASS, evidence)


def remapped_rows(gpu: Gpu) -> Finding | None:
    rows = gpu.remapped_rows()
    if rows is None:
        return None
    evidence = f"{durations.counted(rows.uncorrected, 'row')} remapped for uncorrected errors"
    if rows.failed or rows.uncorrected > MOST_REMAPPED_ROWS:
        evidence += ", and a remapping failed" if rows.failed else ""
        return Finding(Verdict.FAIL, evidence, "replace the GPU")
    if rows.pending:
        return Finding(Verdict.FAIL, f"{evidence}, and one is pending", "reset the GPU")
    return Finding(Verdict.PASS, evidence)


def slowdown(gpu: Gpu) -> Finding | None:
    reasons = gpu.slowdowns()
    if reasons is None:
        return None
    faults, limits = reasons
    if faults:
        evidence = f"clocks are held down: {', '.join(faults)}"
        return Finding(Verdict.FAIL, evidence, "check cooling and power supply, or another node")
    if limits:
        evidence = f"clocks are held down by {', '.join(limits)}"
        return Finding(Verdict.WARN, evidence, "raise the limit, or end what runs on the GPU")
    return Finding(Verdict.PASS, "clocks are not held down")


def temperature(gpu: Gpu) -> Finding | None:
    degrees = gpu.temperature()
    if degrees is None:
        return None
    limit = degrees.slowdown or HOTTEST
    evidence = f"{degrees.now:.0f} °C of {limit:.0f} °C"
    if degrees.now >= limit:
        return Finding(Verdict.FAIL, evidence, "check the cooling, or use another node")
    if degrees.now >= limit - WARM:
        return Finding(Verdict.WARN, evidence, "check the cooling, and what else runs on it")
    # GPUs that pass share one evidence, although their temperatures differ.
    return Finding(Verdict.PASS, f"below {limit:.0f} °C")


def pcie(gpu: Gpu) -> Finding | None:
    link, model = gpu.pcie(), gpu_model(gpu.model())
    if link is None:
        return None
    generation = f", generation {link.max_generation}" if link.max_generation else ""
    evidence = f"PCIe x{link.width} of x{link.max_width}{generation}"
    if link.width < link.max_width:
        must = model is not None and not model.any_slot
        unless = "or use another node" if must else "unless the board gives this slot fewer lanes"
        remedy = f"reseat the GPU or its riser, {unless}"
        return Finding(Verdict.FAIL if must else Verdict.WARN, evidence, remedy)
    if model and link.max_generation and link.max_generation < model.pcie_generation:
        evidence += f"; {model.name} has generation {model.pcie_generation}"
        return Finding(Verdict.WARN, evidence, "check the slot and the machine's firmware settings")
    return Finding(Verdict.PASS, evidence)


def links(gpu: Gpu) -> Finding | None:
    state, model = gpu.links(), gpu_model(gpu.model())
    if state is None:
        return None
    evidence = (
        f"{state.up} of {durations.counted(state.up + state.down, 'link')} to other GPUs are up"
    )
    remedy = "restart the fabric manager and reset the GPU, or use another node"
    if state.down and state.up:
        return Finding(Verdict.FAIL, evidence, remedy)
    if state.down:  # as on a GPU that is alone in its virtual machine
        return Finding(Verdict.WARN, evidence, remedy)
    if model and state.up < model.links:
        return Finding(Verdict.WARN, f"{evidence}; {model.name} has {model.links}", remedy)
    return Finding(Verdict.PASS, evidence)


def partition(gpu: Gpu) -> Finding | None:
    mode = gpu.partition()
    if mode is None:
        return None
    if mode:
        remedy = "make it whole (nvidia-smi -mig 0; amd-smi set --compute-partition SPX)"
        return Finding(Verdict.WARN, f"the GPU is divided ({mode})", remedy)
    return Finding(Verdict.PASS, "the GPU is whole")


def held_memory(context: Context) -> Finding:
    if why := context.why_no_gpu:
        return Finding(Verdict.SKIP, why)
    own, whose = context.own_processes()

    def judge(gpu: Gpu) -> Finding | None:
        memory = gpu.memory()
        if memory is None:
            return None
        holders = gpu.processes()
        if memory.used < HELD_WARNS:
            return Finding(Verdict.PASS, f"less than {sized(HELD_WARNS)} is held")
        evidence = f"{sized(memory.used)} of {sized(memory.total)} are held"
        evidence += f" by processes {', '.join(map(str, holders))}" if holders else ""
        if own and own >= set(holders):
            ends = context.ends_leftovers
            return Finding(Verdict.WARN, f"{evidence}, {whose}", ends_with_start=ends)
        verdict = Verdict.FAIL if memory.used > HELD_FAILS * memory.total else Verdict.WARN
        return Finding(verdict, evidence, "end what runs there, or reset the GPU")

    return each_gpu.each(context, judge)


def _on_each(name: CheckName, question: str, judge: each_gpu.Judge) -> Check:
    """A check that asks each GPU of this node."""
    timeout = each_gpu.NVML_TIMEOUT
    return Check(name, question, lambda context: each_gpu.each(context, judge), timeout=timeout)


CHECKS = (
    Check(CheckName.GPU_PRESENT, "which GPUs are there?", present),
    Check(
        CheckName.GPU_COUNT,
        "are there as many GPUs as asked, and does each answer?",
        counted,
        timeout=each_gpu.NVML_TIMEOUT,
    ),
    _on_each(CheckName.GPU_RECOVERY, "does the driver ask for a reset?", recovery),
    _on_each(CheckName.GPU_ECC, "are there uncorrected memory errors?", ecc),
    _on_each(CheckName.GPU_REMAPPED_ROWS, "are the memory's spare rows used up?", remapped_rows),
    _on_each(CheckName.GPU_SLOWDOWN, "do the GPUs run at full clocks?", slowdown),
    _on_each(CheckName.GPU_TEMPERATURE, "are the GPUs cool enough?", temperature),
    _on_each(CheckName.GPU_PCIE, "is the link to the machine at its full width?", pcie),
    _on_each(CheckName.GPU_LINKS, "are the links between the GPUs up?", links),
    _on_each(CheckName.GPU_PARTITION, "is each GPU undivided?", partition),
    Check(
        CheckName.GPU_MEMORY,
        "is the GPUs' memory free?",
        held_memory,
        timeout=each_gpu.NVML_TIMEOUT,
    ),
)
