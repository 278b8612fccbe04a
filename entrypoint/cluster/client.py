"""HTTP client of the head's control port, for workers and commands."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from typing import Any

import httpx

from entrypoint.cluster.access import RENEWAL
from entrypoint.cluster.node_info import NodeInfo
from entrypoint.cluster.roll import QUESTION_SECONDS
from entrypoint.cluster.trust import (
    NO_TRUST,
    OtherTlsError,
    Trust,
    WrongTokenError,
    raise_if_of_tls,
)
from entrypoint.machine import oom_kills
from entrypoint.machine.gpus.use import GpuUse
from entrypoint.net import wait
from entrypoint.net.http import bearer, said_by
from entrypoint.net.sockets import host_port
from entrypoint.net.tls import NotProvenError
from entrypoint.preflight.changes import Change
from entrypoint.processes.inbox import (
    HeadLost,
    HeadSaid,
    JobOver,
    JoinAgain,
    Message,
    RanksAsked,
    SpareTold,
    StacksAsked,
)
from entrypoint.processes.rank_processes import RankProcess

ANSWER_TIMEOUT_SECONDS = 10.0
CONNECT_TIMEOUT_SECONDS = 3.0
QUESTION_MARGIN_SECONDS = 3.0
"""For the answer to a long poll whose limit has passed."""
TRIES = 3
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A machine that is gone resets no connection. Keep-alive probes detect it after 5 s."""


class RefusedError(Exception):
    """The head refuses this node; the sentence is the head's."""


class WeakKeyError(WrongTokenError):
    """The key is one of the run, and does not suffice."""


class DeclinedError(Exception):
    """The head does not do what a command asks for; the sentence is the head's."""


ENDED = ("Server disconnected", "peer closed connection")
"""How httpx begins what it says of a connection that the server has ended."""


class NoHeadError(wait.NotYetError):
    """What answers on the port is not a Rollcall head; a head may replace it later."""


class UnknownNameError(wait.NotYetError):
    """The address names a machine that no name server knows."""


class NotNowError(wait.NotYetError):
    """The head answers that it cannot do this now, as while its storage does not answer."""


class HeadFailedError(wait.NotYetError):
    """The head fails on this request, as by a defect of its own."""


@dataclass(frozen=True, slots=True)
class CheckedIn:
    """The head's answer to a check-in."""

    incarnation: str
    address: str
    """Where the head's Ray is; "" if the head does not say it."""
    heritage: Mapping[str, Any] | None = None
    """What this node has to know to take the head's place; None if it may not."""
    ray_token: str | None = None
    """The token of the head's Ray; None if it is this node's."""
    bare: bool = False
    """This node is a spare, and its Ray is to offer nothing."""
    ray_port: int = 0
    """Where the head's Ray listens; 0 if the head does not say it."""


class ControlClient:
    def __init__(
        self, host: str, port: int, token: str, url: str | None = None, trust: Trust = NO_TRUST
    ) -> None:
        """`url`: where the control port is reached from outside, instead of `host` and `port`.

        Raises ConfigError if the authorities that are to be trusted cannot be read.
        """
        self.on_token: Callable[[str], None] = lambda _: None
        """Called with the new token once `rotate-token` has replaced the one of before."""
        self._token = token
        self._question_seconds = QUESTION_SECONDS
        self._own_key = ""
        """By which the head gives this node a new token; "" before the check-in."""
        self._renewing = threading.Lock()
        self.base = (url or f"{trust.scheme}://{host_port(host, port)}").rstrip("/")
        self.at = host, port, token
        self._http = httpx.Client(
            base_url=self.base,
            headers=bearer(token),
            timeout=httpx.Timeout(ANSWER_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS),
            **trust.options(lambda: self._token, self.base, KEEPALIVE, is_given=url is not None),
        )

    def close(self) -> None:
        self._http.close()

    def check_in(self, info: NodeInfo, *, joined: bool = False) -> CheckedIn:
        """Check in at the head; return its answer.

        Raises RefusedError, WrongTokenError, and NotYetError if the head does not answer.
        """
        answer = self.ask("POST", "/v1/check-in", json=asdict(replace(info, joined=joined)))
        row = answer.json()
        refused = answer.status_code in (400, 409)
        value = row.get("reason" if refused else "incarnation")
        if value is None:
            raise self._no_head(_status_of(answer))
        if refused:
            raise RefusedError(value)
        self._own_key = str(row.get("own_key", ""))
        self._question_seconds = float(row.get("question_seconds", QUESTION_SECONDS))
        address = str(row.get("address", ""))
        inherits, ray, bare = row.get("heritage"), row.get("ray_token"), row.get("bare", False)
        port = int(row.get("ray_port", 0))
        return CheckedIn(str(value), address, inherits, ray, bool(bare), port)

    def leave(self, node: str, why: str) -> bool:
        """Tell the head that this node's machine is about to go; return whether it knows now."""
        try:
            answer = self.ask("POST", "/v1/leave", params={"node": node, "why": why})
        except (wait.NotYetError, WrongTokenError):
            return False
        return answer.is_success

    def tell_left_over(self, node: str, job: str, left: str) -> None:
        """Say what this node has ended of a job that is over. Raises as `command` does."""
        self.command("POST", "/v1/left-over", params={"node": node, "job": job, "left": left})

    def tell_health(self, node: str, changes: Sequence[Change]) -> None:
        """Say what is worse on this node than before. Raises as `command` does."""
        rows = [[one.kind, one.part, one.evidence] for one in changes]
        self.command("POST", "/v1/health", json={"node": node, "changes": rows})

    def tell_ranks(self, node: str, number: int, ranks: Sequence[RankProcess]) -> None:
        """Answer the head's question of this number. Raises as `command` does."""
        row = {"node": node, "number": number, "ranks": [asdict(one) for one in ranks]}
        self.command("POST", "/v1/ranks", json=row)

    def send_log(self, where: dict[str, str], content: bytes) -> None:
        """Send a part of a log; `where` is the query of /v1/log. Raises as `command` does."""
        self.command("POST", "/v1/log", params=where, content=content)

    def command(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Return the head's answer to a command. Raises DeclinedError, and as `ask` does."""
        answer = self.ask(method, path, **options)
        row: dict[str, Any] = answer.json()
        if answer.is_success:
            return row
        if isinstance(why := row.get("error"), str):
            if (answer.status_code, why) == (404, "Not Found"):
                why = f"{self.base} has no {path}: give the control port's address, with no path"
            raise DeclinedError(why)
        raise self._no_head(_status_of(answer))

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return an answer whose body is a JSON object.

        Raises WrongTokenError, UntrustedError, OtherTlsError, NoHeadError, NotNowError,
        HeadFailedError, and NotYetError if there is not a usable answer.
        """
        sent = self._token
        answer = self._request(method, path, **options)
        if answer.status_code == 401 and (at := _retired(answer)):
            if not self._renewed(sent):
                raise self._replaced(at)
            answer = self._request(method, path, **options)
        if answer.status_code == 401:
            raise WrongTokenError(f"the head at {self.base} does not know this node's token")
        if answer.status_code == 403 and _is_object(answer) and "needs" in answer.json():
            raise WeakKeyError(f"the head at {self.base} declines{_why(answer)}")
        if answer.status_code == 500:  # a proxy has 502, 503 or 504
            raise HeadFailedError(f"the head failed on {method} {self.base}{path} (status 500)")
        if answer.status_code > 500:
            why = _why(answer)
            # Without a reason, a proxy answers; with 502 what leads to a head that does not answer.
            kind = NotNowError if why and answer.status_code != 502 else wait.NotYetError
            raise kind(f"{self.base}{path} answers {answer.status_code}{why}")
        if not _is_object(answer):
            raise self._no_head(_status_of(answer))
        return answer

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the answer. Raises NotYetError, and if no head is there to trust as `ask` does."""
        try:
            answer = self._http.request(method, path, **options)
        except NotProvenError as error:
            if error.replaced:
                raise self._replaced(error.replaced) from None
            raise WrongTokenError(
                f"what answers at {self.base} does not prove that it knows this token"
            ) from None
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client is closed
            raise_if_of_tls(error, httpx.URL(self.base))
            # A server that only ends the connection may be a head that ends.
            if isinstance(error, httpx.RemoteProtocolError) and not str(error).startswith(ENDED):
                raise self._no_head("its answer is no HTTP") from None
            raise _silence(self.base, error) from None
        if answer.status_code == httpx.codes.UPGRADE_REQUIRED:
            raise OtherTlsError(
                f"the head at {self.base} speaks TLS, and this side does not: set the same "
                "ROLLCALL_TLS or ROLLCALL_TLS_CA here as on the head"
            )
        return answer

    def _replaced(self, at: str) -> WrongTokenError:
        return WrongTokenError(
            f"the token given to the head at {self.base} was replaced at {at} by "
            "`rollcall rotate-token`"
        )

    def _renewed(self, refused: str) -> bool:
        """Get the head's new token by this node's own key; return whether there is one.

        `refused`: the token of before. Raises NotYetError.
        """
        with self._renewing:  # other threads ask, too
            if self._token != refused:
                return True
            if not self._own_key:
                return False
            answer = self._request("POST", RENEWAL, headers=bearer(self._own_key))
            if not answer.is_success:
                return False
            self._token = str(answer.json()["token"])
            self._http.headers.update(bearer(self._token))
            self.on_token(self._token)
            return True

    def _no_head(self, why: str) -> NoHeadError:
        return NoHeadError(
            f"what answers at {self.base} is not a head ({why}): "
            "is ROLLCALL_CONTROL_PORT right? (Ray's dashboard, 8265, is another port)"
        )

    def watch(
        self,
        node: str,
        incarnation: str,
        put: Callable[[Message], None],
        is_there: Callable[[], bool] = lambda: True,
        gpus: Callable[[], Sequence[GpuUse]] = tuple,
    ) -> None:
        """Keep a long poll open from a thread; `put` what it brings, at last what ends it.

        `is_there`: returns whether the head may still be at this address; asked after an error.
        `gpus`: returns the present use of the node's GPUs.
        """
        signs = partial(_signs_of_life, node, gpus)

        def watch() -> None:
            try:
                put(self._watch(signs, incarnation, put, is_there))
            except (ValueError, KeyError, TypeError) as error:  # whoever answers is not the head
                put(HeadLost(f"what it answers cannot be read: {error!r}"))

        threading.Thread(target=watch, name="watch-head", daemon=True).start()

    def _watch(
        self,
        signs: Callable[[], dict[str, Any]],
        incarnation: str,
        put: Callable[[Message], None],
        is_there: Callable[[], bool],
    ) -> Message:
        failures, stacks_of, ranks_asked, over, is_spare = 0, 0, 0, "", False
        answered_within = self._question_seconds + QUESTION_MARGIN_SECONDS
        limit = httpx.Timeout(answered_within, connect=CONNECT_TIMEOUT_SECONDS)
        while True:
            try:
                answer = self.ask(
                    "GET",
                    "/v1/outcome",
                    params=signs(),
                    timeout=limit,
                )
            except (wait.NotYetError, WrongTokenError) as error:
                failures += 1
                if failures == TRIES or self._http.is_closed:
                    return HeadLost(str(error))
                if not is_there():
                    return HeadLost(f"{error}, and it is elsewhere now")
                threading.Event().wait(wait.backoff(failures, first=0.3))
                continue
            failures = 0
            row = answer.json()
            if row.get("incarnation") != incarnation:
                return HeadLost("the head was started again")
            if answer.status_code == 404:
                return JoinAgain()
            if row["outcome"] != "running":
                return HeadSaid(row["outcome"], row["exit_code"])
            if row["stacks_of"] != stacks_of:  # the next job's attempts count from 1 again
                stacks_of = row["stacks_of"]
                if stacks_of:
                    put(StacksAsked(stacks_of, row.get("job") or ""))
            if row.get("ranks_asked", 0) > ranks_asked:
                ranks_asked = row["ranks_asked"]
                put(RanksAsked(ranks_asked))
            if bool(row.get("spare")) != is_spare:
                is_spare = not is_spare
                put(SpareTold(is_spare))
            if (row.get("over") or "") != over:
                over = row.get("over") or ""
                if over:
                    put(JobOver(over, time.time()))


def _silence(base: str, error: Exception) -> wait.NotYetError:
    """Return why nothing answers at `base`, and what the system says of it."""
    said, cause = said_by(error), error.__cause__
    match cause.__context__ if cause else None:
        case ConnectionRefusedError():
            said = f"nothing listens there: {said}"
        case socket.gaierror():
            return UnknownNameError(f"{base}: no machine of this name is known here: {said}")
        case TimeoutError():
            said = f"no answer in time: {said}"
    return wait.NotYetError(f"{base}: {said}")


def _signs_of_life(node: str, gpus: Callable[[], Sequence[GpuUse]]) -> dict[str, Any]:
    """Return the query of a long poll."""
    use = [astuple(gpu) for gpu in gpus()]
    known = {"gpus": json.dumps(use, separators=(",", ":"))} if use else {}
    return {"node": node, "oom_kills": oom_kills.count(), **known}


def _retired(answer: httpx.Response) -> str:
    """Return since when the token is replaced; "" if it was no token of the run."""
    return str(answer.json().get("retired", "")) if _is_object(answer) else ""


def _is_object(answer: httpx.Response) -> bool:
    try:
        return isinstance(answer.json(), dict)
    except (ValueError, RecursionError):
        return False


def _status_of(answer: httpx.Response) -> str:
    return f"{answer.request.url.path} gives {answer.status_code}"


def _why(answer: httpx.Response) -> str:
    try:
        return f": {answer.json()['error']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
