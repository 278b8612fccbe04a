"""The machine's network interfaces, as the kernel lists them."""

from __future__ import annotations

from pathlib import Path

from entrypoint.machine import interfaces
from tests.support.machines import network


def test_the_kernels_list_of_bonds_is_no_interface(tmp_path: Path) -> None:
    sys = network(tmp_path, "bond0")
    (sys / "class" / "net" / "bonding_masters").write_text("bond0\n")
    found = interfaces.interfaces(sys, {})
    assert [interface.name for interface in found] == ["bond0"]
