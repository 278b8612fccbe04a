"""Pure: which key of a run opens which path of the control port.

The run's token opens all. Two keys are derived from it. The read-only key is for links, dashboards
and Prometheus. The page's key is what a browser keeps: it also stops, but submits no job.
"""

from __future__ import annotations

import hmac
import re
from enum import IntEnum
from urllib.parse import urlencode

from entrypoint.run import token as run_token

READS_ONLY = "a read-only key does not open this: the run's own token does"
STOPS = re.compile(r"/v1/(?:jobs/[^/]+/)?stop")


class Access(IntEnum):
    NONE = 0
    READ = 1
    """Page, metrics, state, events, jobs, logs."""
    STOP = 2
    """READ, and a stop of the run or of a job."""
    ALL = 3


class Keys:
    """The keys of one run."""

    def __init__(self, token: str) -> None:
        self._of = {
            Access.READ: run_token.read_only(token),
            Access.STOP: run_token.for_page(token),
            Access.ALL: token,
        }
        self.cookie = f"rollcall-{run_token.derived(token, 'cookie')[:8]}"
        """Name of the cookie. Browsers send the cookies of one host to all of its ports."""

    def access(self, key: str) -> Access:
        """Return what `key` opens. Compares in constant time."""
        given = key.encode()
        opened = [a for a, own in self._of.items() if hmac.compare_digest(given, own.encode())]
        return opened[0] if opened else Access.NONE

    def for_browser(self, access: Access) -> str:
        """Return the key that a browser keeps: never the token."""
        return self._of[min(access, Access.STOP)]


def needed(method: str, path: str) -> Access:
    """Return what a request needs. The poll for the outcome is a worker's sign of life."""
    if method in ("GET", "HEAD") and path != "/v1/outcome":
        return Access.READ
    return Access.STOP if method == "POST" and STOPS.fullmatch(path) else Access.ALL


def page_link(base: str, token: str, *, controls: bool = False) -> str:
    """Return the address of the page with its read-only key, or with a key that also stops.

    `base`: the control port's URL. Logs mask what follows `token=`, and not what follows `read=`.
    No link has the run's token: browsers keep addresses.
    """
    reads, stops = run_token.read_only(token), run_token.for_page(token)
    query = {"token": stops} if controls else {"read": reads}
    return f"{base.rstrip('/')}/?{urlencode(query)}"
