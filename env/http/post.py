"""JSON over HTTP to the cluster's own servers: one request, two kinds of fault, retries."""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
from collections.abc import Callable
from typing import Any

import httpx
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_before_delay,
    wait_exponential_jitter,
)

from env.http.service_key import add_key

WORTH_ANOTHER_TRY = {408, 425, 429}
"""Client errors that pass by themselves."""
CONNECTIONS = 32
"""Requests of one client under way at a time; httpx takes seconds of CPU to queue hundreds."""
MOST_REDIRECTIONS = 5
LONGEST_WAIT = 15.0
"""Seconds between two tries, at most."""


MASK = "********"
USER = re.compile(r"(?<=://)[^\s,]*(?=@)|(?<![^\s,])(?!\w+://)[^\s,?]*(?=@)")
"""With the password, of a URL with or without its scheme."""
QUERY = re.compile(r"(://[^\s,?]*\?)[^\s,]+")


class OutageError(Exception):
    """A fault that may pass: no answer, or one that says nothing."""

    def __init__(self, url: str, fault: str, wait: float = 0.0, *, slow: bool = False) -> None:
        super().__init__(f"{shown(url)}: {fault}")
        self.slow = slow
        """Whether a longer try might have brought an answer."""
        self.wait = wait
        """Seconds for which the server asked to be left alone."""


class RejectedError(RuntimeError):
    """A refusal, or a redirection that is not followed: the same request again would not help.

    Of a server that has answered before, it is an outage.
    """

    def __init__(self, url: str, fault: str, status: int) -> None:
        super().__init__(f"{shown(url)}: {fault}")
        self._url, self._fault = url, fault
        self.status = status

    def as_outage(self) -> OutageError:
        return OutageError(self._url, self._fault)


def new_client(connections: int = CONNECTIONS) -> httpx.AsyncClient:
    """A client with a transport of its own, because HTTP_PROXY is not for the cluster's servers."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(verify=_tls(), limits=limits))


def service_client() -> httpx.AsyncClient:
    """A client that sends the key of the cluster's reward and retrieval servers."""
    client = new_client()
    client.event_hooks = {"request": [add_key]}
    return client


@functools.cache
def _tls() -> ssl.SSLContext:
    """The certificates, which take tens of milliseconds to load."""
    return httpx.create_ssl_context()


async def post_json(client: httpx.AsyncClient, url: str, body: object, timeout: float) -> Any:
    """The JSON that the server answers within `timeout` seconds.

    Raises OutageError and RejectedError.
    """
    try:
        async with asyncio.timeout(timeout):  # httpx's own limits hold for each read, not the whole
            response = await _post(client, httpx.URL(url), body)
    except TimeoutError:
        raise OutageError(url, f"no answer within {timeout:.3g} s", slow=True) from None
    except httpx.RequestError as error:
        raise OutageError(url, f"{type(error).__name__}: {error}".rstrip(". :")) from error
    if response.status_code >= 500 or response.status_code in WORTH_ANOTHER_TRY:
        raise OutageError(url, _words(response), _retry_after(response))
    if response.status_code >= 300:
        raise RejectedError(url, _words(response), response.status_code)
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        raise OutageError(url, f"an unusable answer: {error}") from error


async def _post(client: httpx.AsyncClient, url: httpx.URL, body: object) -> httpx.Response:
    """Return the answer, behind redirections to the same host that keep method and body.

    RFC 9110, 15.4: 307 and 308 keep them. 301, 302 and 303 may become a GET, of a page to log in.
    """
    for _ in range(MOST_REDIRECTIONS):
        response = await client.post(url, json=body, timeout=None)
        there = _redirection(url, response)
        if there is None:
            break
        url = there
    return response


def _redirection(url: httpx.URL, response: httpx.Response) -> httpx.URL | None:
    """Return where the same request is to go instead; None if it may not be sent elsewhere."""
    if response.status_code not in (307, 308):
        return None
    try:
        there = url.join(response.headers.get("location", ""))
    except httpx.InvalidURL:
        return None
    is_open = url.scheme == "https" and there.scheme != "https"  # the key would be readable
    if there.host != url.host or there.scheme not in ("http", "https") or is_open:
        return None
    return there if there.userinfo else there.copy_with(userinfo=url.userinfo)


def patience(
    deadline: float, before_sleep: Callable[[RetryCallState], None] | None = None
) -> AsyncRetrying:
    """Tries until one brings no OutageError, with growing pauses, for `deadline` seconds."""
    return AsyncRetrying(
        retry=retry_if_exception_type(OutageError),
        stop=stop_before_delay(deadline),
        wait=_wait,
        before_sleep=before_sleep,
        reraise=True,
    )


def telling(last: OutageError | None, fault: OutageError, *, is_cut: bool) -> OutageError:
    """Return the fault to report: a try that the deadline has cut short hides none before it."""
    return fault if last is None or not (fault.slow and is_cut) else last


def check_url(url: str, example: str) -> None:
    """Raises ValueError if `url` is not an address of a server."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        why = "" if "@" in url else f": {error}"  # a part of the password may be a wrong port
        raise ValueError(f"'{shown(url)}' is not a URL{why}") from error
    host, port = parsed.host, parsed.port
    is_host = bool(host) and (":" in host or "%" not in host)  # httpx writes a space as %20
    is_port = port is None or 0 < port < 1 << 16
    if parsed.scheme not in {"http", "https"} or not (is_host and is_port):
        raise ValueError(f"'{shown(url)}' is not a URL such as {example}")


def shown(url: str) -> str:
    """Return a URL, or what was to be one, without what may be secret: user, password, query."""
    return QUERY.sub(rf"\1{MASK}", USER.sub(MASK, url))


_BACKOFF = wait_exponential_jitter(multiplier=0.2, max=LONGEST_WAIT, jitter=0.2)


def _wait(state: RetryCallState) -> float:
    fault = state.outcome.exception() if state.outcome else None
    asked_for = fault.wait if isinstance(fault, OutageError) else 0.0
    return max(_BACKOFF(state), min(asked_for, LONGEST_WAIT))


def _retry_after(response: httpx.Response) -> float:
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isdecimal() else 0.0


def _words(response: httpx.Response) -> str:
    """Status and what the server said, short enough for one line."""
    said = " ".join(response.text.split())
    text = f"HTTP {response.status_code} {response.reason_phrase}"
    if response.has_redirect_location:
        text += f" to {shown(response.headers['location'])[:200]}"
    return f"{text}: {said[:200]}".rstrip(": ")
