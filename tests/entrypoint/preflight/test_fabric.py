"""InfiniBand, RoCE and network interfaces, on trees as the kernel shows them."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrypoint.config.read import read_settings
from entrypoint.config.role import Head, Worker
from entrypoint.machine import infiniband, interfaces
from entrypoint.machine.interfaces import Interface
from entrypoint.machine.view import Machine
from entrypoint.net import dns
from entrypoint.preflight import fabric, network
from entrypoint.preflight.check import Context, Result
from entrypoint.preflight.run import CHECKS
from entrypoint.preflight.verdict import Verdict
from tests.support import machines

HEAD = Head(1, 1, "a test")
OF_PORTS = [
    check
    for check in CHECKS
    if check.name.startswith("fabric.") and check.name not in ("fabric.interface", "fabric.runpod")
]


def asked(name: str, environ: dict[str, str] | None = None, **given: Any) -> Result:
    role = given.pop("role", HEAD)
    (check,) = (one for one in CHECKS if one.name == name)
    return check.run(Context(role, read_settings(environ or {}), Machine(**given)))


def port(root: Path, environ: dict[str, str], name: str, **machine: Any) -> Result:
    return asked(name, environ, sys=machines.fabric(root, **machine))


@pytest.mark.parametrize("roce", [False, True], ids=["infiniband", "roce"])
def test_a_healthy_fabric_gives_no_alarm(
    roce: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric, "WATCH_SECONDS", 0.0)
    sys = machines.fabric(tmp_path, roce=roce)
    for check in OF_PORTS:
        result = asked(check.name, sys=sys, dev=machines.rdma_dev(tmp_path))
        assert result.verdict in (Verdict.PASS, Verdict.SKIP), result


def test_a_machine_without_a_fabric_is_skipped_in_one_sentence(tmp_path: Path) -> None:
    told = {asked(check.name, sys=tmp_path).evidence for check in OF_PORTS}
    assert told == {"no InfiniBand or RoCE device on this machine"}


def test_a_dead_port_is_named_with_its_state(tmp_path: Path) -> None:
    result = port(tmp_path, {}, "fabric.ports", mlx5_3=machines.DOWN)
    assert result.verdict is Verdict.FAIL
    assert result.evidence == "mlx5_3:1 is DOWN (Polling)"
    assert "cable" in result.remedy


@pytest.mark.parametrize(
    ("machine", "environ", "verdict"),
    [
        ({"mlx5_3": machines.DOWN | {"phys_state": "3: Disabled"}}, {}, "warn"),
        ({"mlx5_3": machines.DOWN | {"link_layer": "Ethernet"}}, {}, "warn"),
        (
            {"mlx5_3": machines.DOWN | {"link_layer": "Ethernet"}},
            {"NCCL_IB_HCA": "mlx5_3"},
            "fail",
        ),
        ({"mlx5_3": machines.DOWN | {"state": "2: INIT", "phys_state": "5: LinkUp"}}, {}, "fail"),
        ({"devices": 1, "mlx5_0": machines.DOWN}, {}, "fail"),
    ],
    ids=["disabled", "another network's", "another's but named", "no subnet manager", "the only"],
)
def test_a_port_that_is_down_counts_where_it_is_meant_to_be_up(
    machine: dict[str, Any], environ: dict[str, str], verdict: str, tmp_path: Path
) -> None:
    assert port(tmp_path, environ, "fabric.ports", **machine).verdict == verdict


def test_the_second_port_of_a_card_may_be_without_a_cable(tmp_path: Path) -> None:
    sys = machines.fabric(tmp_path)
    machines.write(sys / "class/infiniband/mlx5_0/ports/2", machines.PORT | machines.DOWN)
    assert asked("fabric.ports", sys=sys).verdict is Verdict.WARN


def test_a_slow_port_is_named_among_its_like(tmp_path: Path) -> None:
    slow: dict[str, str | int] = {"rate": "200 Gb/sec (4X HDR)"}
    result = port(tmp_path, {}, "fabric.rate", mlx5_2=slow)
    assert result.verdict is Verdict.FAIL
    assert result.evidence == "mlx5_2:1 runs at 200 Gbit/s, the others of InfiniBand at 400"


def test_ports_of_another_network_may_have_another_rate(tmp_path: Path) -> None:
    storage = machines.ROCE_GIDS | {"rate": "100 Gb/sec (4X EDR)"}
    assert port(tmp_path, {}, "fabric.rate", mlx5_3=storage).verdict is Verdict.PASS


def test_roce_ports_of_two_rates_are_a_question_until_nccl_is_told_which(tmp_path: Path) -> None:
    slow: dict[str, str | int] = {"rate": "100 Gb/sec (4X EDR)"}
    machine = {"roce": True, "mlx5_3": slow}
    assert port(tmp_path, {}, "fabric.rate", **machine).verdict is Verdict.WARN
    named = {"NCCL_IB_HCA": "mlx5"}
    assert port(tmp_path, named, "fabric.rate", **machine).verdict is Verdict.FAIL
    left_out = {"NCCL_IB_HCA": "^mlx5_3"}
    assert port(tmp_path, left_out, "fabric.rate", **machine).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("index", "verdict", "says"),
    [
        (None, "pass", "NCCL chooses the index"),
        ("3", "pass", "fits 4 ports"),
        ("2", "fail", "mlx5_0:1 has IB/RoCE v1 at NCCL_IB_GID_INDEX=2"),
        ("4", "fail", "mlx5_0:1 has no address at GID index 4"),
        ("9", "fail", "mlx5_0:1 has no address at GID index 9"),
        ("three", "fail", "is not a number"),
    ],
)
def test_a_gid_index_must_have_an_address_of_roce_v2(
    index: str | None, verdict: str, says: str, tmp_path: Path
) -> None:
    environ = {} if index is None else {"NCCL_IB_GID_INDEX": index}
    result = port(tmp_path, environ, "fabric.gid", roce=True)
    assert result.verdict == verdict
    assert says in result.evidence
    assert ("NCCL_IB_GID_INDEX=3" in result.remedy) == (index in ("2", "4", "9"))


def test_a_roce_port_without_an_address_is_told(tmp_path: Path) -> None:
    none = {name: "0000:" * 7 + "0000" for name in machines.ROCE_GIDS if name.startswith("gids/")}
    result = port(tmp_path, {}, "fabric.gid", roce=True, mlx5_2=none)
    assert result.evidence == "mlx5_2:1 has no RoCE v2 address"


def test_an_unknown_device_is_named_beside_those_that_are_there(tmp_path: Path) -> None:
    result = port(tmp_path, {"NCCL_IB_HCA": "mlx4_0"}, "fabric.hca", devices=2)
    assert result.verdict is Verdict.FAIL
    assert "this node has mlx5_0, mlx5_1" in result.evidence
    partly = port(tmp_path, {"NCCL_IB_HCA": "mlx5_0,mlx4"}, "fabric.hca", devices=2)
    assert (partly.verdict, partly.evidence[-8:]) == (Verdict.WARN, " no mlx4")
    absent = port(tmp_path, {"NCCL_IB_HCA": "^mlx5_1,mlx5_bond_0"}, "fabric.hca", devices=2)
    assert (absent.verdict, absent.evidence[-15:]) == (Verdict.WARN, " no mlx5_bond_0")


@pytest.mark.parametrize(
    ("pattern", "verdict", "said", "remedy"),
    [
        ("^=mlx5_0,^=mlx5_1", "warn", "no ^=mlx5_1, because ^ and = count", "give ^=mlx5_0,mlx5_1"),
        ("^mlx5_0,^mlx5_1", "warn", "no ^mlx5_1, because", "give ^mlx5_0,mlx5_1"),
        ("=mlx5_0,=mlx5_1", "warn", "no =mlx5_1, because", "give =mlx5_0,mlx5_1"),
        ("mlx5_0,^mlx5_1", "warn", "no ^mlx5_1, because", "give one sign before all names"),
        ("=^mlx5_0", "fail", "no ^mlx5_0, because", "give =mlx5_0"),
    ],
)
def test_a_sign_behind_the_beginning_of_the_list_is_told(
    tmp_path: Path, pattern: str, verdict: str, said: str, remedy: str
) -> None:
    result = port(tmp_path, {"NCCL_IB_HCA": pattern}, "fabric.hca", devices=2)
    assert result.verdict == verdict
    assert said in result.evidence
    assert result.remedy.startswith(remedy)


def test_a_small_mtu_on_roce_is_told(tmp_path: Path) -> None:
    assert port(tmp_path, {}, "fabric.mtu", roce=True, mtus=(1500,)).verdict is Verdict.WARN


def test_an_error_counter_that_moves_is_told_and_one_that_stands_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real file that grows while the check watches it; old errors are nobody's fault."""
    monkeypatch.setattr(fabric, "WATCH_SECONDS", 1.0)
    sys = machines.fabric(tmp_path, devices=2)
    counter = sys / "class/infiniband/mlx5_1/ports/1/counters/symbol_error"
    timer = threading.Timer(0.5, lambda: counter.write_text("9\n"))
    timer.start()
    result = asked("fabric.errors", sys=sys)
    timer.join()
    assert result.verdict is Verdict.WARN
    assert result.evidence == "mlx5_1:1: symbol_error rose by 9 within 1 s"


@pytest.mark.parametrize("raw", ["0", "", "nonsense"])
def test_infiniband_that_is_not_disabled_passes(raw: str, tmp_path: Path) -> None:
    result = port(tmp_path, {"NCCL_IB_DISABLE": raw}, "fabric.disabled")
    assert result.verdict is Verdict.PASS


def test_gpudirect_without_its_module_proves_nothing(tmp_path: Path) -> None:
    sys, dev = machines.fabric(tmp_path), machines.nvidia_dev(tmp_path)
    result = asked("fabric.gpudirect", sys=sys, dev=dev)
    assert (result.verdict, "proves nothing" in result.evidence) == (Verdict.PASS, True)


ENS1 = Interface("ens1", True, 9000, ("10.65.0.2",))
ETH0 = Interface("eth0", True, 1500, ("172.18.0.3",))
DOCKER = Interface("docker0", True, 1500, ("172.17.0.1",))
OFF = Interface("ens2", False, 1500, ())


@pytest.mark.parametrize(
    ("pattern", "verdict", "says"),
    [
        ("ens1", "pass", "NCCL_SOCKET_IFNAME=ens1"),
        ("^docker,eth", "pass", "=^docker,eth"),
        ("^docker,eth,podman,lo", "pass", "=^docker,eth,podman,lo"),
        ("ens1,eth0", "warn", "names eth0 first"),  # in the kernel's order
        ("eth0", "warn", "names eth0, and the way to the head is ens1 (10.65.0.2)"),
        ("ib0", "fail", "names no interface of this node, which has ens2, eth0, ens1, docker0"),
        ("ens2", "fail", "names ens2, which is down"),
        ("=ens", "fail", "names no interface"),
        ("^docker", "warn", "leaves eth0 first, and the way to the head is ens1"),
        ("^=ens1,eth0", "warn", "leaves docker0, and the way to the head is ens1"),
        ("^eth0,ens1,docker", "fail", "leaves ens2, which is down"),
        ("^e,docker", "fail", "leaves no interface of this node"),
    ],
)
def test_the_interface_that_is_named_must_be_there_up_and_lead_to_the_head(
    pattern: str, verdict: str, says: str
) -> None:
    every = [OFF, ETH0, ENS1, DOCKER]
    finding = network.judge_chosen("NCCL_SOCKET_IFNAME", pattern, ENS1, every)
    assert finding.verdict == verdict
    assert says in finding.evidence
    assert ("set NCCL_SOCKET_IFNAME=ens1" in finding.remedy) == (verdict != "pass")


def test_on_an_instant_cluster_the_internets_interface_is_wrong_for_sure(tmp_path: Path) -> None:
    environ = {
        "RUNPOD_POD_ID": "abc",
        "NODE_RANK": "1",
        "NUM_NODES": "2",
        "NODE_ADDR": "10.65.0.2",
        "PRIMARY_ADDR": "10.65.0.1",
        "NCCL_SOCKET_IFNAME": "eth0",
    }
    sys = machines.network(tmp_path, "eth0", "ens1")
    known = {"eth0": ["172.18.0.3"], "ens1": ["10.65.0.2"]}
    role = Worker("10.65.0.1", "a test")
    result = asked("fabric.interface", environ, role=role, sys=sys, addresses=lambda: known)
    assert result.verdict is Verdict.FAIL
    assert "set NCCL_SOCKET_IFNAME=ens1" in result.remedy


def test_an_interface_with_rdma_may_be_another_than_the_one_to_the_head() -> None:
    rdma = replace(ETH0, name="ib0", rdma=True)
    finding = network.judge_chosen("NCCL_SOCKET_IFNAME", "ib0", ENS1, [ENS1, rdma])
    assert finding.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("variable", "pattern", "verdict", "said", "remedy"),
    [
        ("NCCL", "^=eth0,^=docker0", "warn", "no ^=docker0: ^ and = count", "give ^=eth0,docker0"),
        ("NCCL", "^eth0,^docker", "warn", "no ^docker: ^ and =", "give ^eth0,docker"),
        ("NCCL", "=ens1,=ens2", "warn", "no =ens2: ^ and =", "give =ens1,ens2"),
        ("NCCL", "^eth,docker,ib7", "warn", "there is no ib7; this node has ens2", "name these"),
        ("NCCL", "=ens1,ens7", "warn", "there is no ens7; this node has", "name these"),
        (
            "GLOO",
            "^docker0",
            "fail",
            "no ^docker0: gloo takes names of interfaces alone",
            "set GLOO",
        ),
        ("GLOO", "=ens1", "fail", "no =ens1: gloo takes names of interfaces alone", "set GLOO"),
        ("GLOO", "ens1,ens7", "fail", "there is no ens7", "name these"),
        ("GLOO", "ens1", "pass", "=ens1", ""),
    ],
)
def test_a_sign_or_a_name_in_a_list_of_interfaces_that_counts_for_nothing_is_told(
    variable: str, pattern: str, verdict: str, said: str, remedy: str
) -> None:
    every = [OFF, ENS1, ETH0, DOCKER]
    finding = network.judge_chosen(f"{variable}_SOCKET_IFNAME", pattern, ENS1, every)
    assert finding.verdict == verdict, finding
    assert said in finding.evidence
    assert finding.remedy.startswith(remedy)


def test_gloo_takes_names_as_they_are() -> None:
    finding = network.judge_chosen("GLOO_SOCKET_IFNAME", "ens", ENS1, [ENS1])
    assert finding.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("every", "gpus", "verdict"),
    [
        ([ENS1, ETH0], 8, "pass"),
        ([DOCKER, ENS1], 8, "pass"),
        ([ETH0, ENS1], 8, "warn"),
        ([ETH0, ENS1], 0, "pass"),
    ],
)
def test_where_nothing_is_named_nccls_own_choice_counts_with_gpus(
    every: list[Interface], gpus: int, verdict: str
) -> None:
    finding = network.judge_unset(ENS1, every, gpus=gpus)
    assert finding.verdict == verdict
    assert ("set NCCL_SOCKET_IFNAME=ens1" in finding.remedy) == (verdict == "warn")


def test_loopback_is_right_for_a_node_whose_address_is_a_loopbacks() -> None:
    """As in the demo: three nodes on one machine."""
    finding = network.judge_chosen("GLOO_SOCKET_IFNAME", "lo", None, [ETH0])
    assert finding.verdict is Verdict.PASS


def test_a_cluster_of_one_node_needs_no_interface() -> None:
    result = asked("fabric.interface", {"NCCL_SOCKET_IFNAME": "no"}, role=Head(0, 0, "a test"))
    assert result.verdict is Verdict.SKIP


def test_interfaces_come_in_the_kernels_order_without_the_loopback(tmp_path: Path) -> None:
    sys = machines.network(tmp_path, "ens1", "eth0", down=("eth0",))
    found = interfaces.interfaces(sys, {"ens1": ["10.0.0.5", "fd00::5"]})
    assert [(one.name, one.up) for one in found] == [("ens1", True), ("eth0", False)]
    assert interfaces.holding("fd00::0005", found) == found[0]
    assert interfaces.holding("127.0.0.1", found) is None


def test_a_line_tells_its_speed_where_a_device_is_behind_it(tmp_path: Path) -> None:
    sys = machines.network(tmp_path, "ens1", "eth0", "ens2")
    for name, speed in (("ens1", "25000"), ("eth0", "10000"), ("ens2", "-1")):
        machines.write(sys / "class" / "net" / name, {"speed": speed})
    for name in ("ens1", "ens2"):  # eth0 is a container's virtual pair
        machines.write(sys / "class" / "net" / name, {"device/vendor": "0x15b3"})
    found = interfaces.interfaces(sys, {})
    assert {one.name: one.gbits for one in found} == {"ens1": 25.0, "eth0": 0.0, "ens2": 0.0}


@pytest.mark.parametrize(
    ("environ", "gbits"),
    [
        ({}, 1200.0),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_3"}, 800.0),
        ({"NCCL_IB_HCA": "^mlx5_0"}, 800.0),
        ({"NCCL_IB_HCA": "^mlx5"}, 0.0),
        ({"NCCL_IB_HCA": "=mlx5"}, 0.0),
        ({"NCCL_IB_DISABLE": "1"}, 0.0),
    ],
)
def test_the_links_of_a_node_are_its_active_ports_that_nccl_takes(
    environ: dict[str, str], gbits: float, tmp_path: Path
) -> None:
    sys = machines.fabric(tmp_path, mlx5_1=machines.DOWN)
    assert infiniband.used_gbits(sys, environ) == gbits


def test_this_machines_own_interfaces_are_read() -> None:
    found = interfaces.interfaces(Path("/sys"), interfaces.addresses())
    assert all(one.mtu > 0 for one in found)


def test_runpods_network_between_pods_is_named_for_what_it_is() -> None:
    role = Worker("abc.runpod.internal", "a test")
    result = asked("fabric.runpod", role=role)
    assert result.verdict is Verdict.WARN
    assert "100 Mbit/s" in result.evidence
    assert "Instant Cluster" in result.remedy


def test_a_name_server_that_is_silent_costs_no_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dns, "ANSWER_SECONDS", 0.05)
    gone = threading.Event()

    def silent(*_: object, **__: object) -> None:
        gone.wait(5)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    assert network.looked_up("silent.runpod.internal") is None
    gone.set()


def test_a_head_that_is_not_there_yet_is_no_fault() -> None:
    role = Worker("nobody.invalid", "a test")
    result = asked("host.names", role=role)
    assert result.verdict is Verdict.PASS
    assert "the head nobody.invalid not yet" in result.evidence
