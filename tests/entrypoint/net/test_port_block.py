"""Ports that are reserved on this machine, against other processes that reserve and listen."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.exit_codes import ExitCode
from entrypoint.commands import demo
from entrypoint.net import node_claims, port_block
from entrypoint.net.port_block import SLOT_PORTS, PortBlock

HOLDER = """
import sys
from entrypoint.net import port_block
port_block.LOCKS, port_block.FIRST, port_block.END = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
block = port_block.PortBlock()
print(block.first, flush=True)
input()
"""


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The first of the ports of two slots, which are all that there are during this test."""
    with PortBlock(2 * SLOT_PORTS) as first:
        monkeypatch.setattr(port_block, "LOCKS", f"rollcall-test-{os.getpid()}")
        monkeypatch.setattr(port_block, "FIRST", first)
        monkeypatch.setattr(port_block, "END", first + 2 * SLOT_PORTS)
        yield first


def test_no_port_is_reserved_twice_and_a_killed_process_holds_none(first: int) -> None:
    limits = [port_block.LOCKS, str(port_block.FIRST), str(port_block.END)]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, *limits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        held = int(holder.stdout.readline())
        with PortBlock() as one:
            assert {one, held} == {first, first + SLOT_PORTS}
            with pytest.raises(OSError, match="no 1 successive free ports"):
                PortBlock()
        with pytest.raises(OSError, match="no 51 successive free ports"):
            PortBlock(SLOT_PORTS + 1)
        holder.kill()
        holder.wait()
        with PortBlock(SLOT_PORTS + 1) as both:
            assert both == first


@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")],
)
def test_a_port_on_which_anybody_listens_is_passed_over(
    first: int, family: socket.AddressFamily, host: str
) -> None:
    try:
        listener = socket.create_server((host, first), family=family)
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    with listener:
        taken = port_block.why_not(first)
        assert taken is not None
        assert taken.errno == errno.EADDRINUSE
        with PortBlock() as one:
            assert one == first + SLOT_PORTS
        with pytest.raises(OSError, match="no 51 successive free ports"):
            PortBlock(SLOT_PORTS + 1)


def test_the_worker_ports_of_a_node_that_runs_are_passed_over(first: int) -> None:
    claim = node_claims.of("another", first + SLOT_PORTS - 1, first + SLOT_PORTS - 1).hold()
    assert claim is not None
    with claim, PortBlock() as one:
        assert one == first + SLOT_PORTS
    with PortBlock() as _, PortBlock() as _:
        pass


def test_two_demos_at_once_use_different_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts: list[demo.Layout] = []

    def run(layout: demo.Layout, options: object) -> int:
        layouts.append(layout)
        return demo.main(["--dir", str(tmp_path / "second")]) if len(layouts) == 1 else 0

    monkeypatch.setattr(demo, "_prepare", lambda *_: None)
    monkeypatch.setattr(demo, "_run", run)
    assert demo.main(["--dir", str(tmp_path / "first")]) == ExitCode.FINISHED
    one, other = sorted(layout.ports for layout in layouts)
    last = layouts[0].node(demo.WORKERS)["ROLLCALL_WORKER_PORTS"].partition("-")[2]
    assert other > one + int(last) - layouts[0].ports


def test_a_demo_without_ports_says_so_in_one_line(
    tmp_path: Path, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(["--dir", str(tmp_path)]) == ExitCode.RETRY
    (said,) = capsys.readouterr().out.splitlines()
    assert f"no 1000 successive free ports between {first} and {first + 99}: end another" in said
