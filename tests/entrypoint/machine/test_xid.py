"""NVIDIA's catalogue of Xid errors: each number has one action."""

from __future__ import annotations

import pytest

from entrypoint.machine.xid import ACTIONS, CATALOGUE, XidAction, action


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (31, XidAction.RESTART_PROGRAM),
        (119, XidAction.RESET_GPU),
        (79, XidAction.REBOOT_HOST),
        (151, XidAction.RESTART_VM),
        (48, XidAction.LOOK_FURTHER),
        (63, XidAction.IGNORE),
        (9999, XidAction.LOOK_FURTHER),
    ],
)
def test_an_xid_asks_for_what_the_catalogue_says(number: int, wanted: XidAction) -> None:
    assert action(f"kernel: NVRM: Xid (PCI:0000:1a:00): {number}, pid=1122, words") is wanted


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("0x1 (GPU Reset Required)", XidAction.RESET_GPU),
        ("0x2 (Node Reboot Required)", XidAction.REBOOT_HOST),
        ("0x2 (OS Reboot)", XidAction.REBOOT_HOST),
        ("0x4 (Drain and Reset)", XidAction.RESET_GPU),
        ("0x3 (Drain P2P)", XidAction.LOOK_FURTHER),
        ("0x0 (None)", XidAction.IGNORE),
    ],
)
def test_xid_154_names_its_action(words: str, wanted: XidAction) -> None:
    line = (
        f"NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to {words}"
    )
    assert action(line) is wanted


def test_the_xid_catalogue_gives_each_number_one_action() -> None:
    assert len(ACTIONS) == sum(map(len, CATALOGUE.values()))
    assert action("Xid is a word") is None
