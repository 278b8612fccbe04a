"""A run that goes on from its store: on a new machine, the run directory is empty at first.

The history (journal, run.json, progress) comes before the head takes its lease, since the journal
has the number of the newest lease. The newest complete checkpoint comes after that, if the run
directory has none.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from contract import stored_json
from contract.journal import read_events
from contract.manifest import (
    MANIFEST,
    WrittenFile,
    checkpoint_path,
    files_in,
    newest_checkpoint,
)
from contract.run_dir import RunFiles, sync_directory, write_atomically
from entrypoint.run.journal import Journal
from entrypoint.run.store import Store, UnusableStoreError, checkpoint_name

HISTORY = ("journal.jsonl", "metrics.jsonl", "progress.json", "result.json", "run.json")
"""Small files of the run directory that the store has too. run.json comes last."""
OWNER = ".owner"
"""Names the head that came to the store last; the uploads of any other head end."""
UNDER_WAY = ".fetching"
"""A file of the run directory until all that the run resumes from is there."""


class OtherRunError(Exception):
    """The store holds another run, or a later state of this run; the sentence names both."""


def history(store: Store, run: RunFiles) -> bool:
    """Fetch the run's history into a run directory that has none; return whether there is one.

    Raises StoreError, and OSError if the disk does not take it.
    """
    if run.run.exists():
        return False
    found = {name: store.read(name) for name in HISTORY}
    if found["run.json"] is None:
        return False
    _run_id(store, found["run.json"])
    (run.root / UNDER_WAY).touch()
    for name, content in found.items():
        if content is not None and not (run.root / name).exists():
            write_atomically(run.root / name, content.decode())
    return True


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
    heads = {event["details"].get("incarnation") for event in read_events(run.journal)}
    if not owner or owner.decode(errors="replace") in heads:
        return
    theirs = max((step for step, whole in store.checkpoints().items() if whole), default=-1)
    ours = newest_checkpoint(run.checkpoints, checksums=False)
    if theirs > (-1 if ours is None else ours):
        raise OtherRunError(
            f"this run went on with a head on another machine: {store.url} has its step {theirs}, "
            f"and the newest checkpoint in {run.root} is {'none' if ours is None else ours}. Give "
            "ROLLCALL_RUN_DIR an empty directory to go on from the store"
        )


def checkpoint(store: Store, run: RunFiles, journal: Journal) -> int | None:
    """Fetch the newest complete checkpoint if the run directory has none; return its step.

    Raises StoreError, and OSError if the disk does not take it.
    """
    step = None
    if newest_checkpoint(run.checkpoints, checksums=False) is None:
        step = _newest_fetched(store, run, journal)
    (run.root / UNDER_WAY).unlink(missing_ok=True)
    return step


def under_way(run: RunFiles) -> bool:
    """Return whether the run's history was fetched, and its checkpoint was not yet."""
    return (run.root / UNDER_WAY).exists()


def _newest_fetched(store: Store, run: RunFiles, journal: Journal) -> int | None:
    whole = [step for step, has_manifest in store.checkpoints().items() if has_manifest]
    for step in sorted(whole, reverse=True):
        if fault := _fetched(store, run, step):
            sentence = f"Checkpoint {step} of {store.url} is skipped: {fault}."
            journal.record("checkpoint-skipped", sentence, step=step, fault=fault)
            continue
        sentence = f"Checkpoint of step {step} fetched from {store.url}."
        journal.record("download", sentence, step=step)
        return step
    return None


def _fetched(store: Store, run: RunFiles, step: int) -> str | None:
    """Fetch a checkpoint; return what is wrong with it, in words, or None."""
    manifest = store.read(f"{checkpoint_name(step)}/{MANIFEST}") or b""
    directory = checkpoint_path(run.checkpoints, step)
    incoming = directory.with_name(f".{directory.name}.incoming")
    shutil.rmtree(incoming, ignore_errors=True)  # of a head that was killed here
    try:
        for file in files_in(manifest):
            if fault := _fetched_file(store, step, file, incoming / file.name):
                return fault
        write_atomically(incoming / MANIFEST, manifest.decode())
        shutil.rmtree(directory, ignore_errors=True)
        incoming.rename(directory)
        sync_directory(directory.parent)
    except ValueError as error:
        return str(error)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return None


def _fetched_file(store: Store, step: int, file: WrittenFile, to: Path) -> str | None:
    to.parent.mkdir(parents=True, exist_ok=True)
    digest = store.download(f"{checkpoint_name(step)}/{file.name}", to)
    if digest is None:
        return f"{file.name} is missing"
    if digest != file.sha256:
        return f"{file.name} does not have the checksum that its manifest gives"
    return None


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
