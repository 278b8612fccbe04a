"""Names and interfaces: does this node find itself and the head, over the right network?"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

from entrypoint.config.check_names import CheckName
from entrypoint.config.role import Head, Worker, head_address
from entrypoint.config.settings import Settings
from entrypoint.machine import address, interfaces, nccl_names
from entrypoint.machine.interfaces import Interface
from entrypoint.net import dns, sockets
from entrypoint.net.wait import NotYetError
from entrypoint.preflight.check import Check, Context
from entrypoint.preflight.verdict import Finding, Verdict

INSTANT_CLUSTER = "runpod-instant-cluster"
VIRTUAL = ("docker", "podman", "lo", "virbr", "veth", "br-", "cni", "cali", "flannel", "tun")
"""Interfaces that a list leaves out for machines that have them."""
ANSWER_SECONDS = 1.0
"""Seconds for the head's answer at each of several addresses."""
RUNPOD_NETWORK = ".runpod.internal"


def looked_up(host: str) -> str | None:
    """The first address of `host`; None if it has none, or if no name server answers in time."""
    try:
        return dns.resolve(host)
    except NotYetError:
        return None


def head_at(settings: Settings, name: str) -> str | None:
    """The head's address: of several, the first at which its control port answers now."""
    with suppress(NotYetError):
        if len(several := dns.addresses(name)) > 1:
            return sockets.answering(several, settings.control_port, timeout=ANSWER_SECONDS)
    return looked_up(name)


def names(context: Context) -> Finding:
    """Can `localhost` and this host's name, which Ray and gloo need, be resolved? On a worker, also
    the head's name, which may come later."""
    own = socket.gethostname()
    if looked_up("localhost") is None:
        remedy = "add `127.0.0.1 localhost` to /etc/hosts"
        return Finding(Verdict.FAIL, "localhost cannot be looked up", remedy)
    if looked_up(own) is None:
        remedy = f"add {own} to /etc/hosts, or set GLOO_SOCKET_IFNAME"
        return Finding(Verdict.WARN, f"this host's own name, {own}, cannot be looked up", remedy)
    evidence = f"localhost and {own} are found"
    if isinstance(context.role, Worker):
        head = context.role.head_address
        found = looked_up(head)
        evidence += f", the head {head} at {found}" if found else f", the head {head} not yet"
    return Finding(Verdict.PASS, evidence)


def own_address(context: Context, everything: list[Interface]) -> str:
    """The address that this node gives to the others, from the route to the head if known."""
    named = head_address(context.settings)
    if isinstance(context.role, Worker):
        head = head_at(context.settings, context.role.head_address)
        return address.worker_address(context.settings, head)
    peer = looked_up(named.value) if named else None
    return address.own_head_address(context.settings, peer, everything)


def chosen(context: Context) -> Finding:
    """Compare NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME with the interfaces and the route."""
    if other := of_another_machine(context):
        return other
    if isinstance(context.role, Head) and context.role.expected_workers == 0:
        return Finding(Verdict.SKIP, "a cluster of one node")
    everything = interfaces.interfaces(context.machine.sys, context.machine.addresses())
    told = own_address(context, everything)
    on_head = isinstance(context.role, Head)  # a worker may be beside its head on one machine
    if on_head and address.is_loopback(told) and not address.is_explicit(context.settings):
        evidence = f"the only address of this node that can be found is {told}, at which no other "
        evidence += "machine reaches it"
        remedy = "set ROLLCALL_NODE_ADDRESS to the address at which the other nodes reach this one"
        return Finding(Verdict.FAIL, evidence, remedy)
    own = interfaces.holding(told, everything)
    given = {
        name: context.environ[name]
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        if context.environ.get(name)
    }
    sure = context.settings.platform.name == INSTANT_CLUSTER
    for name, pattern in given.items():
        finding = judge_chosen(name, pattern, own, everything, sure=sure)
        if finding.verdict is not Verdict.PASS:
            return finding
    if given:
        evidence = ", ".join(f"{name}={pattern}" for name, pattern in given.items())
        return Finding(Verdict.PASS, evidence)
    gpus = context.gpus
    return judge_unset(own, everything, gpus=len(gpus))


def of_another_machine(context: Context) -> Finding | None:
    """Return a failure if ROLLCALL_NODE_ADDRESS is not an address of this machine, else None.

    Ray cannot listen there, and says so only after minutes.
    """
    given = context.settings.node_address
    is_set = context.settings.variable("node_address") is not None
    if given is None or not is_set or not is_address(given) or address.is_loopback(given):
        return None
    everything = interfaces.interfaces(context.machine.sys, context.machine.addresses())
    if interfaces.holding(given, everything) or sockets.is_of_this_machine(given):
        return None
    known = ", ".join(own for one in everything if one.up for own in one.addresses)
    evidence = f"{given} is not an address of this machine, which has {known or 'none'}"
    remedy = "set ROLLCALL_NODE_ADDRESS to one of them, or unset it"
    return Finding(Verdict.FAIL, evidence, remedy)


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def judge_chosen(
    variable: str,
    pattern: str,
    own: Interface | None,
    everything: list[Interface],
    *,
    sure: bool = False,
) -> Finding:
    """`own`: the interface with this node's address; None if that is a loopback.

    `sure`: the platform has one network only, so that another interface is a fault. Interfaces with
    RDMA may differ: they may be for the data.
    """
    # gloo takes names as they are. NCCL takes patterns, and meets over the first that fits.
    is_gloo = variable.startswith("GLOO")
    exact = f"={pattern}" if is_gloo else pattern
    wanted = nccl_names.parsed(exact)
    matching = [interface for interface in everything if wanted.chooses(interface.name)]
    given = f"{variable}={pattern} " + ("names" if is_gloo or pattern[0] != "^" else "leaves")
    names = ", ".join(interface.name for interface in everything) or "none but the loopback"
    right = f"set {variable}={own.name} on this node" if own else f"unset {variable}"
    if wanted.misplaced:
        evidence = f"{given} no {', '.join(wanted.misplaced)}: "
        if is_gloo:
            evidence += "gloo takes names of interfaces alone, without ^ and ="
            return Finding(Verdict.FAIL, evidence, right)
        verdict = Verdict.WARN if matching else Verdict.FAIL
        return Finding(verdict, evidence + nccl_names.ALONE, wanted.meant)
    if not matching:
        if own is None and wanted.chooses("lo"):
            return Finding(Verdict.PASS, f"{variable}={pattern}, as this node's address is")
        evidence = f"{given} no interface of this node, which has {names}"
        return Finding(Verdict.FAIL, evidence, right)
    if not any(interface.up for interface in matching):
        evidence = f"{given} {matching[0].name}, which is down"
        return Finding(Verdict.FAIL, evidence, right)
    has_rdma = any(interface.rdma for interface in matching)
    first = next(iter(interfaces.usable(matching)), matching[0])
    is_right = own in matching if is_gloo else own == first
    if own is not None and not is_right and not has_rdma:
        evidence = f"{given} {first.name}" + (" first" if own in matching else "")
        evidence += f", and the way to the head is {own.name} ({', '.join(own.addresses)})"
        verdict = Verdict.FAIL if sure and own not in matching else Verdict.WARN
        return Finding(verdict, evidence, f"{right}, unless the nodes have a second network")
    unfit = wanted.without([("lo", None), *((one.name, None) for one in everything)])
    absent = [name for name in unfit if not (wanted.excludes and name.startswith(VIRTUAL))]
    if absent:
        evidence = f"{variable}={pattern}: there is no {', '.join(absent)}; this node has {names}"
        verdict = Verdict.FAIL if is_gloo else Verdict.WARN  # gloo ends at a name that is not there
        return Finding(verdict, evidence, "name these alone")
    return Finding(Verdict.PASS, f"{variable}={pattern}")


def judge_unset(own: Interface | None, everything: list[Interface], *, gpus: int) -> Finding:
    """Compare NCCL's own choice with the head's route. Without GPUs nothing uses NCCL."""
    candidates = interfaces.by_nccl(everything)
    if not gpus or own is None or not candidates or candidates[0] == own:
        return Finding(Verdict.PASS, f"this node is reached by {own.name if own else 'loopback'}")
    evidence = f"NCCL chooses {candidates[0].name} by itself, and the way to the head is {own.name}"
    return Finding(Verdict.WARN, evidence, f"set NCCL_SOCKET_IFNAME={own.name}")


def runpod(context: Context) -> Finding:
    """RunPod's network between single pods."""
    head = context.role.head_address if isinstance(context.role, Worker) else ""
    if not head.endswith(RUNPOD_NETWORK):
        return Finding(Verdict.PASS, "the head is not reached over RunPod's global network")
    evidence = f"{head} is reached over RunPod's global network, which has 100 Mbit/s: 16 GB of"
    evidence += " weights take 21 minutes"
    remedy = "use an Instant Cluster; this network does for a remote reward model"
    return Finding(Verdict.WARN, evidence, remedy)


CHECKS = (
    Check(CheckName.HOST_NAMES, "do this host's own name and localhost resolve?", names),
    Check(
        CheckName.FABRIC_INTERFACE,
        "is the interface that NCCL and gloo use the one that leads to the head?",
        chosen,
    ),
    Check(CheckName.FABRIC_RUNPOD, "is the network between the nodes fit for training?", runpod),
)
