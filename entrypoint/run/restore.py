"""A run that goes on from its store: on a new machine, the run directory is empty at first.

The history (journal, run.json, progress) comes before the head takes its lease, since the journal
has the number of the newest lease. After that comes the newest complete checkpoint, if the run
directory has none, or the one that --load_step names. The head that came last owns the store.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

from contract.files import stored_json
from contract.journal_file.index import landmarks
from contract.manifest import checkpoint_path, fault_of, lineage_of, newest_checkpoint
from contract.run_dir import RunFiles
from entrypoint.run import object_store_files
from entrypoint.run.journal import Journal
from entrypoint.run.object_store import Patience, Store, StoreError, UnusableStoreError
from entrypoint.run.object_store_files import CorruptCheckpointError

log = logging.getLogger(__name__)

OWNER_LOOK_SECONDS = 60.0
"""Between two looks whether a later head uses the store, if nothing is uploaded."""
GROWING = ("journal.jsonl", "metrics.jsonl", "samples.jsonl")
"""Files that may be in segments there."""
HISTORY = (
    *GROWING,
    "progress.json",
    "result.json",
    ".layouts",
    ".servers.json",
    ".origin.json",
    ".models.json",
    "run.json",
)
"""Files of the run directory, besides checkpoints, that the store has too. run.json comes last."""
OWNER = ".owner"
"""Names the head that came to the store last; the uploads of any other head end."""
UNDER_WAY = ".fetching"
"""A file of the run directory until all that the run resumes from is there."""


class OtherRunError(Exception):
    """The store holds another run, or another state of it than is asked for; a sentence says so."""


def history(store: Store, run: RunFiles) -> bool:
    """Fetch the run's history into a run directory that has none; return whether there is one.

    Raises StoreError, and OSError if the disk does not take it.
    """
    if run.run.exists():
        return False
    identity = store.read(run.run.name)
    if identity is None:
        return False
    _run_id(store, identity)
    (run.root / UNDER_WAY).touch()
    for name in HISTORY:
        if not (run.root / name).exists():
            _fetch_history(store, name, run.root / name)
    return True


def _fetch_history(store: Store, name: str, to: Path) -> None:
    if not object_store_files.whole(store, name, to) and name in GROWING:
        object_store_files.fetch_growing(store, name, to)


def claim(store: Store, run: RunFiles) -> None:
    """Write run.json to the store.

    Raises OtherRunError if the store has that of another run, or if this run went on elsewhere.
    """
    content = run.run.read_bytes()
    theirs = store.read("run.json")
    if theirs is None:
        store.write("run.json", content)
        return
    if (other := _run_id(store, theirs)) != (mine := _run_id(store, content)):
        raise OtherRunError(
            f"{store.url} holds the checkpoints of run {other}, and {run.root} is run {mine}: give "
            "ROLLCALL_STORAGE another prefix, or ROLLCALL_RUN_DIR an empty directory to go on "
            f"with run {other}"
        )
    if not under_way(run):
        _refuse_earlier_state(store, run)


def _refuse_earlier_state(store: Store, run: RunFiles) -> None:
    """Raises OtherRunError if another machine went on with this run, to a later checkpoint.

    Example: the head moved to a new machine, and later the first machine returns with its old disk.
    """
    owner = store.read(OWNER)
    events = landmarks(run.journal).events(["start"])
    heads = {event["details"].get("incarnation") for event in events}
    if not owner or owner.decode(errors="replace") in heads:
        return
    theirs = max((step for step, whole in store.checkpoints().items() if whole), default=-1)
    ours = newest_checkpoint(run.checkpoints, checksums=False, lineage=lineage_of(run))
    if theirs > (-1 if ours is None else ours):
        raise OtherRunError(
            f"this run went on with a head on another machine: {store.url} has its step {theirs}, "
            f"and the newest checkpoint in {run.root} is {'none' if ours is None else ours}. Give "
            "ROLLCALL_RUN_DIR an empty directory to go on from the store"
        )


def checkpoint(
    store: Store, run: RunFiles, journal: Journal, patience: Patience, named: int | None = None
) -> int | None:
    """Fetch the checkpoint that the run resumes from, if it is not here; return its step.

    `named`: the step that --load_step names; None: the newest one, if the run directory has none.

    Raises OtherRunError if the store has no such step, UnusableStoreError if no checkpoint there is
    whole, StoreError, InterruptedWaitError, and OSError if the disk does not take it.
    """
    step = None
    if named is not None:
        step = _named_fetched(store, run, journal, patience, named)
    elif newest_checkpoint(run.checkpoints, checksums=False, lineage=lineage_of(run)) is None:
        step = _newest_fetched(store, run, journal, patience)
    (run.root / UNDER_WAY).unlink(missing_ok=True)
    return step


def under_way(run: RunFiles) -> bool:
    """Return whether the run's history was fetched, and its checkpoint was not yet."""
    return (run.root / UNDER_WAY).exists()


def may_fetch(run: RunFiles) -> bool:
    """Return whether the run directory may still get a checkpoint from the store."""
    return under_way(run) or not run.run.exists()


def _newest_fetched(
    store: Store, run: RunFiles, journal: Journal, patience: Patience
) -> int | None:
    steps = sorted(_whole(store, patience), reverse=True)
    for step in steps:
        try:
            _fetch(store, run, journal, patience, step)
        except CorruptCheckpointError as error:
            sentence = f"Checkpoint {step} of {store.url} is skipped: {error}."
            journal.record("checkpoint-skipped", sentence, step=step, fault=str(error))
        else:
            return step
    if steps or any(journal.landmarks("upload")):
        raise UnusableStoreError(
            f"{store.url} has no complete checkpoint of this run any more, and the run would begin "
            "again at step 0. Bring a checkpoint back there, or give ROLLCALL_STORAGE another "
            "prefix to begin a new run"
        )
    return None


def _named_fetched(
    store: Store, run: RunFiles, journal: Journal, patience: Patience, step: int
) -> int | None:
    """Checkpoints of later steps that only the store has do not count any more."""
    if fault_of(checkpoint_path(run.checkpoints, step), checksums=False) is None:
        fetched = None
    else:
        whole = sorted(_whole(store, patience))
        try:
            if step not in whole:
                raise CorruptCheckpointError("it is not whole there")
            _fetch(store, run, journal, patience, step)
        except CorruptCheckpointError as error:
            have = ", ".join(str(one) for one in whole if one != step) or "none"
            raise OtherRunError(
                f"--load_step {step}: checkpoint {step} of {store.url} cannot be used: {error}. "
                f"Other steps there: {have}"
            ) from None
        fetched = step
    for later in _whole(store, patience):
        if later > step and not checkpoint_path(run.checkpoints, later).exists():
            patience.ask(store, partial(store.leave, later))
            sentence = (
                f"Checkpoint {later} of {store.url} is put aside: --load_step {step} goes back."
            )
            journal.record("checkpoint-skipped", sentence, step=later)
    return fetched


def _whole(store: Store, patience: Patience) -> list[int]:
    """Return the steps whose checkpoints have a manifest in the store."""
    found = patience.ask(store, store.checkpoints)
    return [step for step, has_manifest in found.items() if has_manifest]


def _fetch(store: Store, run: RunFiles, journal: Journal, patience: Patience, step: int) -> None:
    size = object_store_files.fetch_checkpoint(store, run.checkpoints, step, patience)
    sentence = f"Checkpoint of step {step} fetched from {store.url}: {size / 1e9:.3f} GB."
    journal.record("download", sentence, step=step, bytes=size)


def _run_id(store: Store, content: bytes) -> str:
    """Raises UnusableStoreError."""
    try:
        row = stored_json.parsed(content)
    except ValueError:
        row = None
    if not isinstance(row, dict) or not isinstance(row.get("run_id"), str):
        sentence = f"its run.json is damaged: give ROLLCALL_STORAGE another prefix than {store.url}"
        raise UnusableStoreError(sentence)
    return str(row["run_id"])


class TakenOverError(Exception):
    """A later head uploads to the store; the sentence says so."""


class Ownership:
    """Of one head, from its first contact with the store."""

    def __init__(self, store: Store, run: RunFiles, holder: str) -> None:
        """`holder`: the incarnation of this head."""
        self._store = store
        self._run = run
        self._holder = holder.encode()
        self._taken = False
        self._looked = 0.0

    @property
    def is_due(self) -> bool:
        """Return whether to look again."""
        return not self._taken or time.monotonic() - self._looked >= OWNER_LOOK_SECONDS

    def take_or_check(self) -> None:
        """Raises OtherRunError, TakenOverError if another head has come since, StoreError."""
        if not self._taken:
            claim(self._store, self._run)
            self._store.write(OWNER, self._holder)
            self._taken = True
            self._abort_left_uploads()
        elif self._store.read(OWNER) != self._holder:
            raise TakenOverError(f"a later head uses {self._store.url}")
        self._looked = time.monotonic()

    def _abort_left_uploads(self) -> None:
        try:
            self._store.abort_uploads()
        except StoreError as error:  # the right to list them may be missing
            log.info("incomplete uploads of earlier heads may be left in the store: %s", error)
