"""NVIDIA's Xid errors: what the kernel's log line asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class XidAction(StrEnum):
    IGNORE = "ignore"
    RESTART_PROGRAM = "restart the program"
    RESET_GPU = "reset the GPU"
    REBOOT_HOST = "reboot the host"
    RESTART_VM = "restart the virtual machine"
    LOOK_FURTHER = "look further"

    @property
    def node_is_unfit(self) -> bool:
        """Whether a program that restarts on the same node meets the same GPU."""
        return self in (XidAction.RESET_GPU, XidAction.REBOOT_HOST, XidAction.RESTART_VM)


HARMLESS = (XidAction.RESTART_PROGRAM, XidAction.IGNORE)
"""Errors that programs cause."""

CATALOGUE: dict[XidAction, tuple[int, ...]] = {
    XidAction.RESTART_PROGRAM: (8, 13, 31, 68, 69, 94),
    XidAction.RESET_GPU: (62, 64, 95, 109, 119, 120, 136, 140, 143, 155, 156, 158),
    XidAction.REBOOT_HOST: (79,),
    XidAction.RESTART_VM: (151,),
    XidAction.LOOK_FURTHER: (45, 48, 74, 144, 145, 149, 150),
    XidAction.IGNORE: (43, 63, 92, 121, 157),
}
"""NVIDIA's Xid catalogue of October 2025, the immediate action of each number."""

ACTIONS = {number: action for action, numbers in CATALOGUE.items() for number in numbers}
NAMES_THE_ACTION = 154

LINE = re.compile(r"\bXid \(\s*PCI:([^)]*)\)\s*:\s*(\d+)\b(.*)", re.IGNORECASE)
WANTED = re.compile(r"\bto 0x\w+ \(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported."""

    number: int
    bus: str
    """The GPU's PCI address."""
    action: XidAction

    @property
    def address(self) -> str:
        """Without the function, which some drivers write."""
        return self.bus.partition(".")[0].lower()


def parse(line: str) -> Xid | None:
    """The Xid in a line of the kernel's log; None if the line has none.

    Xid 154 is the driver's own word on the recovery that the GPU needs; a number that the
    catalogue lacks is one to look at.
    """
    match = LINE.search(line)
    if match is None:
        return None
    number = int(match[2])
    asked = ACTIONS.get(number, XidAction.LOOK_FURTHER)
    if number == NAMES_THE_ACTION and (wanted := WANTED.search(match[3])):
        asked = _named(wanted[1].lower())
    return Xid(number, match[1].strip(), asked)


def action(line: str) -> XidAction | None:
    """The action that a line of the kernel's log asks for; None if it has no Xid."""
    found = parse(line)
    return None if found is None else found.action


def _named(words: str) -> XidAction:
    """ "GPU Reset Required", "Node Reboot Required", "OS Reboot", "Drain and Reset", "None"."""
    if "reboot" in words:
        return XidAction.REBOOT_HOST
    if "reset" in words:
        return XidAction.RESET_GPU
    return XidAction.IGNORE if words == "none" else XidAction.LOOK_FURTHER
