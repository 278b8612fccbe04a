"""The life of the head: lease, Ray, control port, services, supervised run, outcome."""

from __future__ import annotations

import logging
import math
import shlex
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from contract import lease as contract_lease
from contract.durations import duration
from contract.exit_codes import ExitCode
from contract.files.child_variables import NODE_OWNER
from contract.files.fd_store import FdStore
from contract.journal_file.index import newest_first
from contract.run_dir import RunFiles
from entrypoint.cluster import earlier_nodes, reported_differences, storage_proof
from entrypoint.cluster.access import Keys, keys_of, page_link
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.registry import NodeRegistry, Spares
from entrypoint.cluster.server import ControlServer
from entrypoint.cluster.serving import Listener
from entrypoint.config import wandb_key
from entrypoint.config.durations import NEVER
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.config.role import Head, bind_address, head_address
from entrypoint.config.settings import Settings
from entrypoint.job import (
    checkpoint_files,
    run_identity,
    supervisor,
)
from entrypoint.job.collective_check import CollectiveCheck
from entrypoint.job.failures.outcome import Outcome, unsaved
from entrypoint.job.job_loop import JobLoop
from entrypoint.job.job_queue import JobQueue
from entrypoint.job.recipes import base as recipes
from entrypoint.job.rendezvous import Rendezvous
from entrypoint.job.run_context import RunContext
from entrypoint.job.supervisor import Supervisor
from entrypoint.machine import address as address_of
from entrypoint.machine.gpus import use as gpu_use
from entrypoint.net import sockets, wait
from entrypoint.node import (
    actor_logs,
    ended_start,
    finished_run,
    heritage,
    own_info,
    ray_node,
    replacement,
    start_again,
    store_sync,
    webhook,
)
from entrypoint.node.existing_ray.cluster import ExistingRay
from entrypoint.node.health_watch import HealthWatch
from entrypoint.node.heritage import Moved, Succession
from entrypoint.node.journal_observer import JournalObserver
from entrypoint.node.ray_head import HeadRay
from entrypoint.processes import process
from entrypoint.processes.inbox import Inbox, StopAsked
from entrypoint.processes.services import Services
from entrypoint.run import errors, lease, lost_head, restore
from entrypoint.run import token as run_token
from entrypoint.run.flight_record import run_end
from entrypoint.run.flight_record.remedies import remedy
from entrypoint.run.journal import Journal
from entrypoint.run.lease import SILENCE_SECONDS, HeldError, Lease
from entrypoint.run.object_store import StoreError
from entrypoint.run.restore import TakenOverError
from entrypoint.run.tls import files as tls_files
from entrypoint.run.tls.files import Served

log = logging.getLogger(__name__)

WAITS = "a run that loses this head waits for it"
TAKES_JOBS = "Ray answers, and the cluster takes jobs: rollcall submit -- python train.py"
PORT_TAKEN = "ROLLCALL_CONTROL_PORT=%d cannot be listened on (%s): free it, or set another port"


def serve(
    settings: Settings,
    role: Head,
    findings: Mapping[str, str],
    inbox: Inbox,
    taken: Succession | None = None,
) -> int | Moved:
    """Lead the run until it ends; return the outcome's exit code.

    Returns Moved if a worker has taken this head's place, before its start or while it was frozen.
    `findings`: as in NodeInfo; `taken`: what this node has as a worker that takes a head's place.
    """
    end = _serve(settings, role, findings, inbox, taken)
    if end == ExitCode.RUN_DIR and settings.head_failover != NEVER:
        moved = lease.moved_to(RunFiles(settings.run_dir).leases)
        if moved and inbox.follow_successor():
            return Moved(moved)
    return end


def _serve(
    settings: Settings,
    role: Head,
    findings: Mapping[str, str],
    inbox: Inbox,
    taken: Succession | None,
) -> int | Moved:
    run, named = RunFiles(settings.run_dir), head_address(settings)

    def superseded(why: str) -> None:
        give_way(settings, own, inbox, why)

    try:
        address = address_of.own_head_address(settings, named.value if named else None)
        tls_files.check(settings, address)
        store_sync.fetch_history(settings, run, inbox.stop)
        if taken is None and ended_start.is_over(settings):
            return ExitCode.FINISHED
        own = taken.lease if taken else Lease(run.leases, superseded, address)
        mark = f"{NODE_OWNER}={process.identity() or ''}"
        own.about = {**_where(settings, address), "mark": mark}
        with own, webhook.telling(settings, run, own.claim):
            journal = Journal(run.journal, settings.node_name, own.claim, settings.secrets)
            begun = run_identity.identify(settings, run)
            if (code := finished_run.end(settings, run, journal, inbox)) is not None:
                return code
            # The first event of each head: readers take the epoch of those that follow from it.
            journal.record(
                "start",
                _start_sentence(settings, role) + ("" if taken else _silent_end(journal)),
                incarnation=own.incarnation,
                **_resume(journal, settings, taken),
                failover=heritage.failover(settings, role.expected_workers).as_dict(),
                address=address,
            )
            if taken:
                _tell_move(journal, settings, run)
            run_identity.record_difference(settings, begun, journal)
            if settings.wandb_api_key is None and wandb_key.is_meant(settings.job):
                log.info("WANDB_API_KEY is not set: nothing is sent to Weights & Biases")
            storage_proof.sweep(run.root)
            me = node_info(settings, address, findings, own.incarnation)
            memory = taken.memory if taken else FdStore(ray_node.fd_store_path(settings))
            return _lead(settings, role, journal, Node(me, memory, inbox))
    except wait.InterruptedWaitError as error:
        log.info("%s", inbox.with_reason(str(error)))
        return ExitCode.STOPPED
    except restore.OtherRunError as error:
        log.error("%s", error)
        return ExitCode.USAGE
    except HeldError as error:
        moved = lease.moved_to(run.leases)
        if moved and settings.head_failover != NEVER:
            return Moved(moved)
        log.error("%s", error)
        return ExitCode.RUN_DIR
    except (StoreError, TakenOverError, contract_lease.SupersededError) as error:
        log.error("%s", error)
        return ExitCode.RUN_DIR
    except OSError as error:
        log.error("%s", errors.explain(error))
        return errors.exit_code(error, run.root)


@dataclass(frozen=True, slots=True)
class Node:
    """This node as its head has it."""

    me: NodeInfo
    """Its `storage` is the head's incarnation."""
    memory: FdStore
    inbox: Inbox


def give_way(settings: Settings, lease: Lease, inbox: Inbox, why: str) -> None:
    """End the job at once, because a later head has the run, and wake the main thread.

    From then on, every write to the run raises SupersededError, which ends this head.
    """
    process.kill(process.find_marked(settings.node_mark, **contract_lease.environment(lease.claim)))
    inbox.put(StopAsked(why, has_successor=True))


def node_info(
    settings: Settings, address: str, findings: Mapping[str, str], incarnation: str
) -> NodeInfo:
    """What the head says about itself."""
    return replace(own_info.of_node(settings, address, findings), storage=incarnation)


def _lead(settings: Settings, role: Head, journal: Journal, node: Node) -> int:
    """From the start of Ray to the outcome."""
    began, me, inbox = time.monotonic(), node.me, node.inbox
    token = run_token.for_head(settings)
    registry = _registry(settings, role, me, journal)
    cluster = (
        ExistingRay(settings, journal, registry, inbox)
        if settings.ray_address
        else HeadRay(settings, me, token, inbox)
    )
    observer = JournalObserver(journal, inbox, cluster)
    files, port = RunFiles(settings.run_dir), settings.control_port
    keys = keys_of(settings, token)
    queue = JobQueue(settings, journal, inbox, registry) if settings.waits_for_jobs else None
    try:
        listener = sockets.listen(port, address_of.bound(settings))
    except OSError as error:
        log.error(PORT_TAKEN, port, error.strerror)
        return errors.exit_code(error, files.root)  # 75 for a port that is taken: it frees itself
    served = _served(settings, token, me)
    control = ControlServer(registry, observer, files, keys, Listener(listener, served))
    control.max_restarts = settings.max_restarts
    patience = {"min_workers": role.min_workers, "replace_timeout": settings.replace_timeout}
    control.patience = patience
    control.bequeath(heritage.told(settings, role, me.address), settings.ray_port)
    _say_failover(settings, role)
    control.jobs.queue = queue  # before Ray answers: a waiting `submit` asks a new head at once
    run = RunContext(settings, recipes.load(settings.recipe), journal, control, inbox)
    env = cluster.environment()
    tell = partial(journal.record, "service")
    health = HealthWatch(settings)
    with (
        nullcontext() if settings.ray_address else run_token.shown_to_shells(token),
        node.memory as memory,
        nullcontext() if settings.ray_address else actor_logs.copying(settings),
        cluster,
        control,
        replacement.watching(settings, registry, journal),
        gpu_use.watching(settings, registry.own_gpus),
        health.watching(),
        health.telling(partial(registry.health.add, me.node)),
        Services(settings, is_head=True, env=env, tell=tell) as services,
        ExitStack() as uploads,
    ):
        ray = sockets.host_port(me.address, settings.ray_port)
        supervise = _supervision(cluster, services, env, ray, role)
        finish_uploads = store_sync.no_uploads
        _say_page(settings, me.address, keys)
        try:
            cluster.wait_ready()
            stored = store_sync.uploading(settings, files, journal, inbox)
            finish_uploads = uploads.enter_context(stored)
            if queue is not None:
                log.info("%s", TAKES_JOBS)
                outcome = JobLoop(run, queue, cluster).serve(supervise)
            else:
                outcome = supervise(run)
        except Exception as error:
            outcome = supervisor.ended_by(error, settings.run_dir, inbox)
        code = supervisor.conclude(outcome, run, time.monotonic() - began)
        if outcome.name == "failed" or code == ExitCode.RUN_DIR:
            log.info("%s", what_to_do(files, code))
        elif outcome.name == "finished" and queue is None:
            log.info("%s", what_is_there(files))
        elif outcome.name == "stopped" and (again := lost_head.command(files)):
            log.info("to resume the run: %s", again)
        memory.save(files.kept, settings.node_name)
        return code if finish_uploads() else unsaved(code)


def _registry(settings: Settings, role: Head, me: NodeInfo, journal: Journal) -> NodeRegistry:
    """Return the roll; of a head that takes over, with the nodes that the head before it had."""
    places_itself = settings.waits_for_jobs or not RECIPES[settings.recipe].keeps_to_nodes
    shrinks = role.min_workers < role.expected_workers
    patience = math.inf if shrinks else settings.replace_timeout
    spares = Spares(role.spare_workers, places_itself, settings.keeps_spares, patience)
    skipped = reported_differences.skipped_checks(settings)
    registry = NodeRegistry(me, role.expected_workers, me.storage, skipped, spares)
    if role.takeovers:
        before = journal.landmarks(*earlier_nodes.KINDS)
        registry.remember(earlier_nodes.members(before, settings.node_name))
    return registry


def _served(settings: Settings, token: str, me: NodeInfo) -> Served | None:
    """Write the node's files of TLS; return what the control port shows, None without TLS."""
    named = head_address(settings)
    return tls_files.prepare(settings, token, me.address, *([named.value] if named else []))


def _where(settings: Settings, address: str) -> dict[str, str]:
    """Return what the lease says of the control port. `address`: this node's."""
    bind = bind_address(settings)
    host = sockets.host_port(bind or address, settings.control_port)
    own = f"{settings.scheme}://{host}"
    return {"url": settings.url or own, "control_url": own, "bind": bind}


def what_to_do(run: RunFiles, code: ExitCode) -> str:
    """The last words of a run that has failed; a report has no cause that nobody could write."""
    with suppress(OSError):
        if run_end.read(run):
            directory = shlex.quote(str(run.root))
            return f"the cause, and what to do: rollcall report {directory}"
    return f"what to do: {remedy('failed', code, None)}"


def what_is_there(run: RunFiles) -> str:
    """The last words of a run that has finished: where its model is, and what shows the run."""
    directory = shlex.quote(str(run.root))
    model = f"the model: {run.exported}; " if checkpoint_files.is_model(run.exported) else ""
    return f"{model}what happened: rollcall report {directory}; the page: rollcall open {directory}"


def _supervision(
    cluster: HeadRay | ExistingRay,
    services: Services,
    env: Mapping[str, str],
    ray: str,
    role: Head,
) -> Callable[[RunContext], Outcome]:
    """Return what supervises a job. `env`: what the services have; `ray`: Ray's host and port."""
    present = role.known  # the next job waits for no worker that was missing

    def supervise(run: RunContext) -> Outcome:
        nonlocal present
        collective = CollectiveCheck(run.settings, ray, env)
        rendezvous = Rendezvous(run, cluster, services, collective, role.min_workers)
        rendezvous.present = present
        try:
            return Supervisor(run, rendezvous, cluster.jobs(run.settings)).supervise()
        finally:
            present = rendezvous.present

    return supervise


def _resume(journal: Journal, settings: Settings, taken: Succession | None) -> dict[str, Any]:
    """Return the command that starts the head again: of a worker's place, that of the first one.

    And whether it starts no other node.
    """
    if taken is None:
        return {
            "resume": start_again.command(settings, socket.gethostname()),
            "resumes_head_alone": not start_again.is_whole(settings),
        }
    first: Mapping[str, Any] = next((event["details"] for event in journal.landmarks("start")), {})
    return {name: first.get(name, "") for name in ("resume", "resumes_head_alone")}


def _tell_move(journal: Journal, settings: Settings, run: RunFiles) -> None:
    starts = [event["node"] for event in journal.landmarks("start")]
    before = starts[-2] if len(starts) > 1 else "the first head"
    sentence = f"the head has moved from {before}, which is silent, to {settings.node_name}"
    journal.record("head-moved", sentence, before=before, now=settings.node_name)


def _say_page(settings: Settings, address: str, keys: Keys) -> None:
    link = page_link(_where(settings, address)["url"], keys.read_only)
    log.info("the run's page, to read only: %s", link)
    if exposed := address_of.exposure(settings, address):
        log.info("%s", exposed)


def _say_failover(settings: Settings, role: Head) -> None:
    """Log whether a worker takes this head's place if it is lost."""
    if settings.head_failover == NEVER:
        return
    if why := heritage.why_off(settings, role.expected_workers):
        if name := settings.variable("head_failover"):
            log.warning("%s has no effect. %s: %s", name, WAITS, why)
        elif role.expected_workers:
            log.info("%s: %s", WAITS, why)
    else:
        seconds = max(settings.head_failover, SILENCE_SECONDS)
        log.info(
            "if this head is lost for %s, a worker takes its place (ROLLCALL_HEAD_FAILOVER)",
            duration(seconds),
        )


def _silent_end(journal: Journal) -> str:
    """Return that the head before this one ended without saying so; "" if it said so."""
    before = list(journal.landmarks("start", "outcome"))
    if not before or before[-1]["kind"] == "outcome":
        return ""
    last = next(newest_first(journal.path))
    silent = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(last["at"])).total_seconds())
    head = before[-1]["node"]
    return f"; the head before it ({head}) ended without saying so, silent for {duration(silent)}"


def _start_sentence(settings: Settings, role: Head) -> str:
    if settings.ray_address:
        nodes = "node" if role.expected_workers == 1 else "nodes"
        return (
            f"this node supervises in the Ray cluster at {settings.ray_address}; it waits for "
            f"{role.expected_workers} {nodes} besides Ray's head"
        )
    jobs = " and for jobs (rollcall submit)" if settings.waits_for_jobs else ""
    if role.known is not None:
        others = ", ".join(role.known) or "no other node"
        return f"{role.why}; it goes on with {others}"
    if role.expected_workers == 0:
        waits = "; it waits for jobs (rollcall submit)" if settings.waits_for_jobs else ""
        return f"this is the head of a cluster of one node (EXPECTED_WORKERS=0){waits}"
    noun = "worker" if role.expected_workers == 1 else "workers"
    spares = role.spare_workers
    besides = f", and has {spares} {'spare' if spares == 1 else 'spares'} besides" if spares else ""
    assumed = settings.expected_workers is None and settings.platform.nodes is None
    alone = " (the default: EXPECTED_WORKERS=0 is a cluster of this node alone)" if assumed else ""
    return f"this is the head; it waits for {role.expected_workers} {noun}{alone}{jobs}{besides}"
