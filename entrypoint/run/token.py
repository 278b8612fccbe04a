"""The cluster's one secret: Ray's token authentication and the control port use it."""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
import secrets
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from contract.files import stored_json
from contract.files.os_errors import with_path
from contract.options import ConfigError, Fault
from contract.redaction import MASK
from contract.run_dir import RunFiles, write_atomically
from entrypoint.config.settings import Settings
from entrypoint.config.variables import Secret
from entrypoint.net import wait
from entrypoint.run import errors
from entrypoint.run.run_dir_reads import STORAGE_GRACE_SECONDS
from entrypoint.run.unfit_head_note import NoteWatch

log = logging.getLogger(__name__)

TOKEN = re.compile(rb"[!-~]{16,}")
"""Characters that an HTTP header can carry, and enough of them to resist guessing."""

READ_ONLY = re.compile(r"rollcall-read-[0-9a-f]{48}")
DERIVED = re.compile(r"rollcall-(?:read|page|submit|service)-[0-9a-f]{48}")
OF_PAGE = re.compile(r"rollcall-page-[0-9a-f]{48}")

SHELLS = Path("/tmp/rollcall-token")
"""The image's command `ray` reads it, so that Ray's commands need no flags in a node's shells."""
RAY_OF_IMAGE = Path("/opt/rollcall/bin/ray")


def read_only(token: str) -> str:
    """The run's read-only key: it reads page, metrics and logs, and opens neither Ray nor stop.

    Whoever has it can compute neither the token nor the page's key. Of a read-only key, the key
    itself.
    """
    return token if is_read_only(token) else f"rollcall-read-{derived(for_page(token), 'read')}"


def is_read_only(token: str) -> bool:
    return READ_ONLY.fullmatch(token) is not None


def for_page(token: str) -> str:
    """The operator key: it reads and stops, but submits no job and opens nothing of Ray.

    Of the operator key, the key itself.
    """
    return token if OF_PAGE.fullmatch(token) else f"rollcall-page-{derived(token, 'page')}"


def for_submit(token: str) -> str:
    """The submit key: it also brings jobs, and starts no node."""
    return f"rollcall-submit-{derived(token, 'submit')}"


def is_derived(key: str) -> bool:
    """Whether a key is derived from some token."""
    return DERIVED.fullmatch(key) is not None


def keys(token: str) -> tuple[str, str, str]:
    """The keys of a token for less: read, operator, submit."""
    return read_only(token), for_page(token), for_submit(token)


def mark(key: str) -> str:
    """What tells a key, and from which nobody can compute it."""
    return derived(key, "mark")


def marks(token: str) -> list[str]:
    """The marks of a token and of its keys."""
    return [mark(key) for key in (token, *keys(token))]


def retired(run: RunFiles) -> dict[str, str]:
    """The marks of the tokens and keys that `rotate-token` has ended → when. Raises OSError."""
    try:
        rows = stored_json.json_object(run.retired_tokens) or {}
    except FileNotFoundError:
        return {}
    return {known: at for known, at in rows.items() if isinstance(at, str)}


def retire(run: RunFiles, token: str, at: str) -> None:
    """Note, for every later head, that a token and its keys open nothing. Raises OSError."""
    rows = retired(run) | dict.fromkeys(marks(token), at)
    write_atomically(run.retired_tokens, json.dumps(rows), mode=0o600)


def for_services(settings: Settings, token: str) -> str:
    """The key of the reward and retrieval servers: the given one, else one of the run's token."""
    own = settings.service_key
    return own.reveal() if own else f"rollcall-service-{derived(token, 'service')}"


def derived(token: str, purpose: str) -> str:
    """A key for one purpose, from which nobody can compute the token."""
    return hmac.digest(token.encode(), f"rollcall {purpose}".encode(), "sha256")[:24].hex()


def given(token: Secret) -> str:
    """The text of ROLLCALL_TOKEN. Raises ConfigError if it is a key for less."""
    if DERIVED.fullmatch(token.reveal()):
        problem = "is a key that a run derived from its token, and starts no node"
        raise ConfigError([Fault("ROLLCALL_TOKEN", MASK, problem, "give the run's own token")])
    return token.reveal()


def for_head(settings: Settings) -> str:
    """The given token, or the run's own token, which its first start makes.

    A given token is never written to the run directory.

    Raises OSError if the run directory does not take the file, and ConfigError for a given token
    that `rotate-token` has replaced.
    """
    run = RunFiles(settings.run_dir)
    ended = retired(run)
    if settings.token is not None:
        token = given(settings.token)
        if at := ended.get(mark(token)):
            problem = f"was replaced at {at} by `rollcall rotate-token`"
            raise ConfigError([Fault("ROLLCALL_TOKEN", MASK, problem, "give the new token")])
        return token
    path = run.token
    try:
        if (found := _token_in(path)) and mark(found) not in ended:
            return found
        log.warning("%s is damaged or replaced: it is made anew, and workers read it again", path)
    except FileNotFoundError:
        pass
    token = secrets.token_hex(24)
    write_atomically(path, token, mode=0o600)
    return token


def _token_in(path: Path) -> str | None:
    """The token in the file; None if no head has written the content. Raises OSError."""
    with with_path(path):
        content = path.read_bytes().strip()
    return content.decode() if TOKEN.fullmatch(content) else None


def for_worker(settings: Settings, stop: threading.Event) -> str:
    """The given token, or the head's token, once the run directory has it.

    Raises GaveUpError, whose sentence names both remedies, after ROLLCALL_HEAD_TIMEOUT, and
    HeadUnfitError if the head does not start.
    """
    if settings.token is not None:
        return given(settings.token)
    run = RunFiles(settings.run_dir)
    path, head_starts = run.token, NoteWatch(run).check

    def read() -> str:
        try:
            token = _token_in(path)
        except OSError as error:
            raise wait.NotYetError(f"{path}: {error.strerror}") from None
        if token is None:
            raise wait.NotYetError(f"{path} holds no token")
        return token

    what = (
        "the cluster's token, which the head writes to the run directory (share ROLLCALL_RUN_DIR "
        "between all nodes)"
    )
    with wait.limited_by("ROLLCALL_HEAD_TIMEOUT"):
        return wait.until(what, read, timeout=settings.head_timeout, stop=stop, abort=head_starts)


def other_than(refused: str, settings: Settings, stop: threading.Event) -> str | None:
    """The run directory's token if it differs from one that the head refuses, else None.

    A head that starts without the file makes a new token. Waits for STORAGE_GRACE_SECONDS.

    Raises InterruptedWaitError.
    """
    if settings.token is not None:
        return None

    def read() -> str:
        if (token := for_client(settings)) and token != refused:
            return token
        raise wait.NotYetError("the run directory holds no other than the one that it refuses")

    try:
        token = wait.until("the head's token", read, timeout=STORAGE_GRACE_SECONDS, stop=stop)
    except wait.GaveUpError:
        return None
    log.info("the head refuses the token of before: the run directory holds another")
    return token


def for_client(settings: Settings) -> str | None:
    """The token for a command such as `status`; None if there is none."""
    if settings.token is not None:
        return settings.token.reveal()
    try:
        return _token_in(RunFiles(settings.run_dir).token)
    except OSError:
        return None


def unreadable(settings: Settings) -> str:
    """Return why the run's token, which is there, cannot be read; "" if it is not there."""
    try:
        _token_in(RunFiles(settings.run_dir).token)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return errors.describe(error)
    return ""


@contextmanager
def shown_to_shells(token: str) -> Iterator[None]:
    show_to_shells(token)
    try:
        yield
    finally:
        hide_from_shells(token)


def show_to_shells(token: str) -> None:
    """Write the token where the image's `ray` looks for it; do nothing outside of our images.

    If it cannot be written, only commands such as `docker exec NODE ray status` miss it.
    """
    if not RAY_OF_IMAGE.exists():
        return
    try:
        descriptor, temporary = tempfile.mkstemp(dir=SHELLS.parent)  # mode 0600
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        Path(temporary).replace(SHELLS)
    except OSError as error:
        log.warning("Ray's own commands have no token here: %s: %s", SHELLS, error.strerror)


def hide_from_shells(token: str) -> None:
    """Delete what `show_to_shells` has written, unless another node of this machine uses it."""
    with suppress(OSError):
        if RAY_OF_IMAGE.exists() and SHELLS.read_text() == token:
            SHELLS.unlink()
