"""The head's dealings with the store of ROLLCALL_STORAGE, from its start to the end of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event
from typing import TypeVar

from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.run import restore
from entrypoint.run.journal import Journal
from entrypoint.run.store import Store, StoreError, UnusableStoreError
from entrypoint.run.upload import Uploads

log = logging.getLogger(__name__)
T = TypeVar("T")


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
    elif _answer(settings, stop, lambda: restore.history(store, run)):
        log.info("this run goes on from %s", store.url)


@contextmanager
def uploading(
    settings: Settings, run: RunFiles, journal: Journal, stop: Event
) -> Iterator[Callable[[], bool]]:
    """Fetch the newest checkpoint if the run directory has none; upload until the block ends.

    Yield what waits until all is uploaded, and returns whether it is. A store that does not answer
    stops a run that has not begun here, and no other. Raises OtherRunError, StoreError, OSError,
    InterruptedWaitError.
    """
    if settings.store is None:
        yield no_uploads
        return
    store = Store(settings.store)
    begun = any(journal.events("attempt")) and not restore.under_way(run)

    def begin() -> None:
        restore.claim(store, run)
        restore.checkpoint(store, run, journal)

    try:
        _answer(settings, stop, begin)
    except StoreError as error:
        if not begun or isinstance(error, UnusableStoreError):
            raise
        journal.record("upload-failed", f"{error}. The run continues from its own directory.")
    with Uploads(store, run, journal) as uploads:
        yield partial(_finish, uploads, settings, stop)


def no_uploads() -> bool:
    """There is nothing to wait for."""
    return True


def upload_rest(settings: Settings, run: RunFiles, journal: Journal, stop: Event) -> bool:
    """Upload what the head that finished the run could not; return whether all is uploaded.

    Raises UnusableStoreError.
    """
    if settings.store is None:
        return True
    with Uploads(Store(settings.store), run, journal) as uploads:
        return _finish(uploads, settings, stop)


def _finish(uploads: Uploads, settings: Settings, stop: Event) -> bool:
    return uploads.finish(stop, grace=settings.grace_seconds, patience=settings.service_timeout)


def _answer(settings: Settings, stop: Event, ask: Callable[[], T]) -> T:
    """Ask the store until it answers. Raises StoreError after ROLLCALL_REWARD_TIMEOUT."""

    def probe() -> T:
        try:
            return ask()
        except UnusableStoreError as error:
            raise UnusableStoreError(f"{settings.store} cannot be used: {error}") from None
        except StoreError as error:
            raise wait.NotYetError(str(error)) from None

    what = f"{settings.store} to answer"
    try:
        return wait.until(what, probe, timeout=settings.service_timeout, stop=stop)
    except wait.GaveUpError as error:
        raise StoreError(str(error)) from None
