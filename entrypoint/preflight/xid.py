"""NVIDIA's Xid errors: what each number asks for."""

from __future__ import annotations

import re

from entrypoint.preflight.check import Finding, Verdict

ACTIONS = {
    "start the program again": (8, 13, 31, 68, 69, 94),
    "reset the GPU": (62, 64, 95, 109, 119, 120, 136, 140, 143, 155, 156, 158),
    "reboot the machine": (79,),
    "start the virtual machine again": (151,),
    "look further": (45, 48, 74, 144, 145, 149, 150),
    "nothing": (43, 63, 92, 121, 157),
}
"""Action to numbers, after NVIDIA's Xid catalogue of October 2025; 154 names an action itself."""
FAILS = ("reboot the machine", "start the virtual machine again")
PASSES = ("start the program again", "nothing")

LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


def action(number: int) -> str:
    """What an Xid asks for; to look further for one that the catalogue does not have."""
    return next((text for text, numbers in ACTIONS.items() if number in numbers), "look further")


def judge(kernel_log: str) -> Finding:
    """`kernel_log`: lines of the kernel's log since the machine was booted."""
    seen: dict[tuple[int, str], int] = {}
    for bus, number in LINE.findall(kernel_log):
        seen[int(number), bus] = seen.get((int(number), bus), 0) + 1
    serious = {key: times for key, times in seen.items() if action(key[0]) not in PASSES}
    if not serious:
        evidence = "no Xid" if not seen else "no Xid but those that programs cause"
        return Finding(Verdict.PASS, evidence)
    evidence = ", ".join(
        f"Xid {number} on {bus} ({n} times)" for (number, bus), n in serious.items()
    )
    actions = list(dict.fromkeys(action(number) for number, _ in serious))
    verdict = Verdict.FAIL if any(one in FAILS for one in actions) else Verdict.WARN
    return Finding(verdict, evidence, "; ".join(actions))
