"""How a command asks the head, from inside and outside of the cluster."""

from __future__ import annotations

import shlex
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import IOBase
from typing import Any, TypeVar
from urllib.parse import urlsplit

from contract import lease
from contract.background import in_background
from contract.durations import duration
from contract.exit_codes import ExitCode
from contract.run_dir import RunFiles
from entrypoint.cluster.access import KEYS
from entrypoint.cluster.client import (
    ControlClient,
    DeclinedError,
    HeadFailedError,
    NoHeadError,
    NotNowError,
    UnknownNameError,
    WeakKeyError,
)
from entrypoint.cluster.trust import OtherTlsError, UntrustedError, WrongTokenError, trust_of
from entrypoint.commands.places import Place, places
from entrypoint.config.role import host_to_ask
from entrypoint.config.settings import Settings
from entrypoint.net import wait
from entrypoint.run import token as run_token
from entrypoint.run import unfit_head_note
from entrypoint.run.flight_record import run_end, standalone
from entrypoint.run.lease import SILENCE_SECONDS, living_url, look
from entrypoint.run.lost_head import AGAIN, all_of, finished_before

T = TypeVar("T")
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C has ended, as of other programs."""
NEVER = threading.Event()
GIVE_TOKEN = "set ROLLCALL_TOKEN to the run's token, or ROLLCALL_RUN_DIR to the run's directory"
TOKEN_WINS = "ROLLCALL_TOKEN is set, and wins: unset it, and the token in {} is used"
SOON_SECONDS = 10.0
"""A --timeout below this says only at its end that no head answers."""


class NoAnswerError(Exception):
    """No head does what is asked for; the sentence says why, with a remedy."""

    def __init__(self, sentence: str, exit_code: ExitCode) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class RefusedError(NoAnswerError):
    """The head answers, and refuses what is asked for; the sentence is the head's."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, ExitCode.USAGE)


class NoRunError(NoAnswerError):
    """No run is here, and none was named: the directory that was looked at is no run's."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, ExitCode.USAGE)


class AwayError(NoAnswerError):
    """No head does it now; one may do it later."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}{remedy}", ExitCode.UNREACHABLE)
        self.reason = reason


def ask(settings: Settings, method: str, path: str, **options: Any) -> dict[str, Any]:
    """Return the head's answer. `options`: as httpx takes them. Raises NoAnswerError."""
    return ask_there(settings, method, path, **options)[0]


def ask_there(
    settings: Settings, method: str, path: str, **options: Any
) -> tuple[dict[str, Any], str]:
    """Return the head's answer, and the URL of the control port that gave it, as people open it.

    A thread asks, because Ctrl-C inside the HTTP client may leave the client's lock held forever.
    Raises NoAnswerError.
    """
    return in_background("ask", lambda: _answer(settings, method, path, **options)).result()


def _answer(
    settings: Settings, method: str, path: str, **options: Any
) -> tuple[dict[str, Any], str]:
    token, trust = token_of(settings), trust_of(settings)
    away: list[wait.NotYetError] = []
    strange: list[WrongTokenError] = []
    for place in places(settings):
        if isinstance(content := options.get("content"), IOBase):
            content.seek(0)  # the place before may have read it
        port = place.port or settings.control_port
        client = ControlClient(place.host, port, token, place.url, trust)
        try:
            return client.command(method, path, **options), _shown(settings, place, client.base)
        except DeclinedError as error:
            raise RefusedError(str(error)) from None
        except HeadFailedError as error:
            sentence = f"{error}: RUN/logs/head.log has the cause, and so has `rollcall logs head`"
            raise NoAnswerError(sentence, ExitCode.UNREACHABLE) from None
        except WeakKeyError as error:
            sentence = f"{error}: give it by ROLLCALL_TOKEN"
            raise NoAnswerError(sentence, ExitCode.NOT_ALLOWED) from None
        except wait.NotYetError as error:
            away.append(error)
        except WrongTokenError as error:  # an address of a machine that is gone may be another's
            strange.append(error)
        finally:
            client.close()
    if strange and settings.token is None and (lost := _silent_head(settings)):
        raise AwayError(f"{strange[0]}, so it is another run's{lost}")
    raise _untrusted(settings, strange[0]) if strange else _away(settings, away)


def _shown(settings: Settings, place: Place, base: str) -> str:
    """Return the URL for links: that which the head prints, not `localhost`, of this node alone."""
    if place.url is None and place.host == "localhost":
        url = living_url(RunFiles(settings.run_dir).leases)
        return url if url and urlsplit(url).port == urlsplit(base).port else base
    return base


def _untrusted(settings: Settings, error: WrongTokenError) -> NoAnswerError:
    match error:
        case OtherTlsError():
            return NoAnswerError(str(error), ExitCode.USAGE)
        case UntrustedError():
            return NoAnswerError(str(error), ExitCode.NOT_ALLOWED)
    remedy = GIVE_TOKEN
    if settings.url is None and settings.token and RunFiles(settings.run_dir).token.is_file():
        remedy = TOKEN_WINS.format(settings.run_dir)
    return NoAnswerError(f"{error}: {remedy}", ExitCode.NOT_ALLOWED)


def _away(settings: Settings, errors: Sequence[wait.NotYetError]) -> AwayError:
    """Return why no head answers, with a remedy. What a head itself says counts most."""
    for error in errors:
        if isinstance(error, NotNowError):
            return AwayError(f"the head cannot answer now: {error}")
    if not errors:
        return AwayError(_nowhere(settings))
    if all(isinstance(error, NoHeadError) for error in errors):
        return AwayError("; ".join(map(str, errors)))
    why = "; ".join(map(str, errors))
    remedy = _lost_head(settings)
    if settings.url and all(isinstance(error, UnknownNameError) for error in errors):
        remedy = ". Correct the address (ROLLCALL_URL)"
    return AwayError(f"no head answers: {why}", remedy or _nearby(settings))


def _nowhere(settings: Settings) -> str:
    """Return why nobody was asked: the run's head has ended, or none has begun."""
    if lost := _lost_head(settings):
        return lost.removeprefix(". ")
    run = RunFiles(settings.run_dir)
    with suppress(OSError):  # it has let its lease go, and could write no outcome
        silent = lease.silence(run.leases)
        begun = run.journal.exists() and not unfit_head_note.read(run)
        if begun and silent is not None and silent > SILENCE_SECONDS:
            ago = duration(silent)
            return f"the head of {run.root} ended {ago} ago without a word: {all_of(run, silent)}"
    return f"no head leads the run in {run.root} now{_nearby(settings)}"


def _nearby(settings: Settings) -> str:
    """Return what the run directory at hand still tells, and where else a head may be."""
    run = RunFiles(settings.run_dir)
    told = "" if settings.url else finished_before(run)
    return f"{told}{_elsewhere(settings)}"


def _elsewhere(settings: Settings) -> str:
    """Return where else a head may be, of which nothing at hand tells."""
    if settings.url is None and host_to_ask(settings) == "localhost":
        host = _lease_host(settings)
        node = f"the head's node ({host})" if host else "the head's node"
        return f": ask on {node}, or set ROLLCALL_HEAD_ADDRESS or ROLLCALL_URL"
    if not settings.shares_run_dir:
        return (
            f". No worker takes its place, as with ROLLCALL_STORAGE={settings.storage} the run "
            f"directory is on its machine alone: if it is lost, {AGAIN}"
        )
    return (
        ". If its machine is gone, and a worker leads the run: set ROLLCALL_RUN_DIR to the run's "
        "directory, or give the address of another node (ROLLCALL_URL)"
    )


def _lost_head(settings: Settings) -> str:
    """Return what to do about a head that wrote its last heartbeat long ago; "" if none did.

    The head of a run that has ended is not lost.
    """
    if settings.url is not None:
        return ""
    with suppress(OSError):
        if over := run_end.read(RunFiles(settings.run_dir)):
            path = shlex.quote(str(settings.run_dir))
            return (
                f". The run in {settings.run_dir} has ended ({over.outcome}), and its head with "
                f"it: rollcall report {path} tells of it, and rollcall open {path} shows its page"
            )
        run = RunFiles(settings.run_dir)
        host, silent = _lease_host(settings), lease.silence(run.leases)
        if host and silent is not None:
            last = f"was last there {duration(silent)} ago"
            if silent > SILENCE_SECONDS:
                return _silent_head(settings)
            if host == socket.gethostname():
                soon = duration(max(1, round(SILENCE_SECONDS - silent)))
                return (
                    f". The head of {settings.run_dir} is on this node ({host}), and {last}: if "
                    f"it was killed just now, ask again in {soon}"
                )
    return ""


def _silent_head(settings: Settings) -> str:
    """Return where the run's silent head was, and what follows; "" if none was, or it beats."""
    run, host = RunFiles(settings.run_dir), _lease_host(settings)
    with suppress(OSError):
        silent = lease.silence(run.leases)
        if settings.url is None and host and silent is not None and silent > SILENCE_SECONDS:
            last, follows = f"was last there {duration(silent)} ago", all_of(run, silent)
            return f". The head of {run.root} was on {host}, and {last}: {follows}"
    return ""


def _lease_host(settings: Settings) -> str:
    """Return on which machine the newest head of the run directory is or was; "" if unknown."""
    with suppress(OSError):
        _, row = look(RunFiles(settings.run_dir).leases)
        return "" if row.get("over") else str(row.get("host", ""))
    return ""


def _without_head(settings: Settings) -> str:
    """Return what tells of a run whose trainer no head has started; "" if it is no such run."""
    run, path = RunFiles(settings.run_dir), shlex.quote(str(settings.run_dir))
    with suppress(OSError):
        if run.journal.exists() and (found := standalone.state_of(run)):
            state = found[0].replace("_", " ")
            return (
                f"the run in {run.root} has no head to ask ({state}): rollcall report {path} tells "
                f"of it, and rollcall open {path} shows its page"
            )
    return ""


def token_of(settings: Settings) -> str:
    """Return the run's token, or the key that was given in its place. Raises NoAnswerError."""
    if token := run_token.for_client(settings):
        return token
    if without := _without_head(settings):
        raise NoAnswerError(without, ExitCode.UNREACHABLE)
    if why := run_token.unreadable(settings):
        sentence = f"no token: {why}. Ask as the user of the run's nodes, or set ROLLCALL_TOKEN"
    elif no_run := _no_run(settings):
        raise NoRunError(no_run)
    else:
        sentence = f"no token: {_without_token(settings)}, or set ROLLCALL_TOKEN"
        if settings.url:
            sentence = f"no token: {GIVE_TOKEN}"
    raise NoAnswerError(sentence, ExitCode.NOT_ALLOWED)


def _no_run(settings: Settings) -> str:
    """Return that no run is found, and what to give; "" if one is there or a head's host is known.

    A directory that a setting names may wait for a head that is still to start.
    """
    directory = settings.run_dir
    is_named = settings.variable("run_dir") is not None
    if settings.url is not None or (is_named and host_to_ask(settings) != "localhost"):
        return ""
    if RunFiles(directory).journal.exists():
        return ""
    if directory.is_dir() and settings.variable("run_dir"):
        return f"no token: {_without_token(settings)}, or set ROLLCALL_TOKEN"
    there = f"has no {RunFiles(directory).journal.name}" if directory.is_dir() else "is not there"
    return (
        f"no run is found: {directory} {there}. Set ROLLCALL_RUN_DIR to the run's directory, or "
        "for a head elsewhere ROLLCALL_URL and ROLLCALL_TOKEN"
    )


def _without_token(settings: Settings) -> str:
    """Return why the run directory has no token, and what to do."""
    directory = settings.run_dir
    if not directory.is_dir():
        return f"{directory} is not there. Set ROLLCALL_RUN_DIR to the run's directory"
    if settings.variable("run_dir") and not RunFiles(directory).journal.exists():
        if note := unfit_head_note.read(RunFiles(directory)):
            return f"no head has begun a run in {directory} yet: {note}. Repair it, start it again"
        return (
            f"no head has begun a run in {directory} yet. Start one there (rollcall up), set "
            "ROLLCALL_RUN_DIR to another directory"
        )
    return f"there is none in {directory}. Set ROLLCALL_RUN_DIR to the run's directory"


def keys_of(settings: Settings) -> tuple[dict[str, str], str]:
    """Return the keys for links that open no more than this command's own, by `DUTIES`.

    And the URL of the control port that gave them. Raises NoAnswerError.
    """
    return ask_there(settings, "GET", KEYS)


def patiently(
    settings: Settings,
    look: Callable[[], T],
    *,
    limit: str = "ROLLCALL_HEAD_TIMEOUT",
    in_program: bool = False,
) -> T:
    """Return what `look` returns; while the head does not answer, retry for `head_timeout`.

    `limit`: what sets this time. The remedy is said once: to a person at the begin, unless the time
    is short, and `in_program` by the error. Raises NoAnswerError.
    """
    is_soon = limit == "--timeout" and settings.head_timeout < SOON_SECONDS
    try:
        return look()
    except AwayError as error:
        said, *command = (error.reason if in_program else str(error)).split("\n")
        if not is_soon:
            print("\n".join([f"{said}; asking again", *command]), file=sys.stderr)

    def again() -> T:
        try:
            return look()
        except AwayError as error:
            is_new = in_program or is_soon
            raise wait.NotYetError(str(error) if is_new else error.reason) from None

    try:
        with wait.limited_by(limit):
            return wait.until("the head", again, timeout=settings.head_timeout, stop=NEVER)
    except wait.GaveUpError as error:
        raise AwayError(str(error)) from None
