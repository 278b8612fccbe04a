"""Rows of the matrix: files of a run that are lost, damaged or another's."""

from __future__ import annotations

from collections.abc import Iterator

from tests.container.faults import acts
from tests.container.faults.acts import ALL, FIRST, KILL, SECOND, both, send, start_node
from tests.container.faults.fault import DIED, LOST, UNDONE, Fault
from tests.container.faults.stage import Stage
from tests.support.node_cluster import HEAD


def spoilt_checkpoints() -> Iterator[Fault[Stage]]:
    for name, sentence, spoil in (
        ("truncated", "the newest checkpoint is cut off", acts.truncate),
        ("bit-flipped", "a bit of the newest checkpoint is flipped", acts.flip_a_bit),
        ("file-missing", "a file of the newest checkpoint is missing", acts.lose_a_file),
        ("manifest-missing", "the newest checkpoint has no manifest", acts.lose_the_manifest),
        ("manifest-torn", "the newest checkpoint's manifest is torn", acts.tear_the_manifest),
        ("empty", "the newest checkpoint's directory is empty", acts.empty),
    ):
        yield Fault(
            name=f"checkpoint-{name}",
            sentence=f"{sentence}, and the driver is killed",
            inject=acts.spoilt(spoil),
            deadline=90,
            classes=DIED,
        )
    for name, sentence, inject in (
        ("copied", "under the name of a later step", acts.copied),
        ("of-another-run", "of another run, under a later step", acts.strange),
    ):
        yield Fault(
            name=f"checkpoint-{name}",
            sentence=f"there is a copy of the newest checkpoint {sentence}, and the driver is"
            " killed",
            inject=inject,
            heal=acts.copies_go,
            deadline=90,
            classes=DIED,
        )


def lost_files() -> Iterator[Fault[Stage]]:
    """Of what a run reads beside its checkpoints."""
    yield Fault(
        name="data-gone",
        sentence="model and prompt data are gone for 8 s, and the driver is killed",
        inject=both(acts.data_goes, send("driver", KILL)),
        heal=acts.data_comes_back,
        after=8,
        deadline=90,
        classes=DIED,
        fast=True,
    )
    yield Fault(
        name="ray-session-1-gone",
        sentence="the files of a worker's Ray are deleted, as by a cleaner of /tmp",
        inject=acts.loses_session(FIRST),
        heal=acts.is_told_of(FIRST, "can start no worker"),
        deadline=90,
        classes=DIED,
        restarts=None,
        fast=True,
    )
    yield Fault(
        name="ray-session-1-gone-and-driver-killed",
        sentence="the files of a worker's Ray are deleted, and the driver is killed",
        inject=acts.loses_session(FIRST, send("driver", KILL)),
        heal=acts.is_told_of(FIRST, "can start no worker"),
        deadline=120,
        classes=DIED,
    )
    yield Fault(
        name="ray-session-0-gone",
        sentence="the files of the head's Ray are deleted, as by a cleaner of /tmp",
        inject=acts.loses_session(HEAD),
        deadline=150,
        classes=LOST,
    )


def damaged_files() -> Iterator[Fault[Stage]]:
    """Beside checkpoints: those that a head reads again."""
    yield Fault(
        name="journal-damaged",
        sentence="lines of the journal are damaged, and the driver is killed",
        inject=both(acts.damages_the_journal, send("driver", KILL)),
        deadline=60,
        classes=DIED,
    )
    yield Fault(
        name="files-damaged",
        sentence="the head loses its power, run.json, progress.json and .phase are damaged, and the"
        " head is started again",
        inject=both(acts.kill_node(HEAD), acts.damages_files),
        heal=start_node(HEAD),
        after=1,
        deadline=120,
        classes=UNDONE,
    )
    yield Fault(
        name="progress-ahead",
        sentence="progress.json tells of 900 steps that nobody made, and the driver is killed",
        inject=both(send("driver", KILL), acts.progress_runs_ahead),
        deadline=60,
        classes=DIED,
    )
    yield Fault(
        name="leases-gone",
        sentence="RUN/.leases is deleted under a living head",
        inject=acts.leases_go,
        deadline=60,
        restarts=False,
    )
    yield Fault(
        name="leases-gone-and-head-killed",
        sentence="the head loses its power, RUN/.leases is deleted, and the head is started again",
        inject=both(acts.kill_node(HEAD), acts.leases_go),
        heal=start_node(HEAD),
        after=1,
        deadline=120,
        classes=UNDONE,
    )
    yield Fault(
        name="token-gone",
        sentence="the head loses its power, RUN/.token is deleted, and the head is started again",
        inject=both(acts.kill_node(HEAD), acts.token_goes),
        heal=start_node(HEAD),
        after=1,
        deadline=120,
        classes=UNDONE,
    )


def others() -> Iterator[Fault[Stage]]:
    """What comes is not what the run was begun with."""
    yield Fault(
        name="run-directory-copied",
        sentence="a worker is killed and comes back with a copy of the run directory; then with the"
        " right one",
        inject=both(acts.kill_node(SECOND), acts.comes_with_a_copy(SECOND)),
        heal=start_node(SECOND),
        deadline=180,
        classes=DIED,
        restarts=None,
    )
    yield Fault(
        name="port-taken",
        sentence="a worker is killed and comes back while another program has one of its ports,"
        " and ends with 75",
        inject=both(acts.kill_node(SECOND), acts.comes_to_a_taken_port(SECOND)),
        heal=start_node(SECOND),
        deadline=180,
        classes=DIED,
        restarts=None,
    )
    yield Fault(
        name="prompts-changed",
        sentence="all are stopped, and started with other prompts: all end with 64; then with the"
        " right ones",
        inject=both(acts.is_told_to_stop(acts.whenever), acts.ends_for_other_prompts),
        heal=both(*ALL),
        deadline=240,
        classes=frozenset({"usage"}),
    )
    yield Fault(
        name="model-changed",
        sentence="all are stopped, and started with other weights of the model: all end with 64;"
        " then with the right ones",
        inject=both(acts.is_told_to_stop(acts.whenever), acts.ends_for_other_weights),
        heal=both(*ALL),
        deadline=240,
        classes=UNDONE,
    )
    yield Fault(
        name="flag-changed",
        sentence="all are stopped, and started with another --dist_timeout",
        inject=acts.is_told_to_stop(acts.whenever),
        heal=both(
            acts.changes_flag("--dist_timeout", "50"),
            *ALL,
            acts.is_recorded("command", "--dist_timeout was 45 and is 50"),
        ),
        deadline=150,
    )
