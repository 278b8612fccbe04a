"""The head's dealings with the store of ROLLCALL_STORAGE, from its start to the end of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event

from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.job import command_identity
from entrypoint.job.failures import resume_check
from entrypoint.job.recipes import base as recipes
from entrypoint.processes.inbox import Inbox, StopAsked
from entrypoint.run import restore
from entrypoint.run.journal import Journal
from entrypoint.run.object_store import Patience, Store, StoreError, UnusableStoreError
from entrypoint.run.restore import TakenOverError
from entrypoint.run.upload import Uploads

log = logging.getLogger(__name__)


def fetch_history(settings: Settings, run: RunFiles, stop: Event) -> None:
    """Fetch the run's history into an empty run directory, before the head takes its lease.

    Raises OtherRunError if the run directory has another run, StoreError, OSError,
    InterruptedWaitError.
    """
    if settings.store is None:
        return
    store = Store(settings.store)
    if run.run.exists():
        with suppress(StoreError):  # the run goes on; its uploads begin when the store answers
            restore.claim(store, run)
    elif _patience(settings, stop).ask(store, lambda: restore.history(store, run)):
        log.info("this run goes on from %s", store.url)


@contextmanager
def uploading(
    settings: Settings, run: RunFiles, journal: Journal, inbox: Inbox
) -> Iterator[Callable[[], bool]]:
    """Fetch the checkpoint to resume from if the run directory lacks it; upload in the block.

    Yield what waits until all is uploaded, and returns whether it is. A store that does not answer
    stops a run that has not begun here, and no other. If a later head uses the store, this head
    stops. Raises OtherRunError, StoreError, OSError, InterruptedWaitError.
    """
    if settings.store is None:
        yield no_uploads
        return
    store, patience = Store(settings.store), _patience(settings, inbox.stop)
    begun = any(journal.landmarks("attempt")) and not restore.under_way(run)
    try:
        patience.ask(store, lambda: restore.claim(store, run))
        restore.checkpoint(store, run, journal, patience, _named_step(settings, journal))
    except StoreError as error:
        if not begun or isinstance(error, UnusableStoreError):
            raise
        journal.record("upload-failed", f"{error}. The run continues from its own directory.")
    with Uploads(store, run, journal) as uploads:
        uploads.taken_over.add_done_callback(lambda why: inbox.put(StopAsked(why.result())))
        yield partial(_finish, uploads, settings, inbox.stop)


def no_uploads() -> bool:
    """There is nothing to wait for."""
    return True


def upload_rest(settings: Settings, run: RunFiles, journal: Journal, stop: Event) -> bool:
    """Upload what the head that finished the run could not; return whether all is uploaded.

    Raises UnusableStoreError, TakenOverError.
    """
    if settings.store is None:
        return True
    with Uploads(Store(settings.store), run, journal) as uploads:
        return _finish(uploads, settings, stop)


def _named_step(settings: Settings, journal: Journal) -> int | None:
    """Return the step that --load_step names, unless this command has resumed from it already.

    None if the job's flags cannot be read now: the supervisor waits for its files, or says why.
    """
    events = journal.landmarks("attempt", "resume")
    if resume_check.has_begun(events, command_identity.fingerprint(settings)):
        return None
    try:
        return recipes.load(settings.recipe).begins_at(settings)
    except (recipes.ArgumentsError, recipes.FilesGoneError):
        return None


def _finish(uploads: Uploads, settings: Settings, stop: Event) -> bool:
    """Raises TakenOverError if a later head uses the store."""
    whole = uploads.finish(stop, grace=settings.grace_seconds, patience=settings.service_timeout)
    if uploads.taken_over.done():
        raise TakenOverError(uploads.taken_over.result())
    return whole


def _patience(settings: Settings, stop: Event) -> Patience:
    return Patience(settings.service_timeout, stop)
