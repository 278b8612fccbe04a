"""Which key of a run opens which path of the control port.

Keys go by duty: the read-only key is for links, dashboards and Prometheus; the operator key also
stops, and is what a browser keeps; the submit key also brings jobs, which run programs on all
nodes; the run's token opens all, and is the nodes'. A key opens what weaker keys open. Each is
derived from the token, or given.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import urlencode

from contract.options import ConfigError, Fault
from contract.redaction import MASK
from contract.run_dir import RunFiles
from entrypoint.config.settings import Settings
from entrypoint.net.paths import CERTIFICATE
from entrypoint.run import token as run_token


class Access(IntEnum):
    """What a key opens. A greater value opens more."""

    NONE = 0
    READ = 1
    """Page, metrics, state, events, jobs, logs."""
    OPERATE = 2
    """READ, and a stop of the run or of a job."""
    SUBMIT = 3
    """OPERATE, and jobs."""
    ALL = 4

    @property
    def key(self) -> str:
        """The key's name in sentences."""
        return KEY_NAMES[self]


KEY_NAMES: Mapping[Access, str] = {
    Access.NONE: "no key",
    Access.READ: "the read-only key",
    Access.OPERATE: "the operator key",
    Access.SUBMIT: "the submit key",
    Access.ALL: "the run's token",
}
DUTIES: Mapping[str, Access] = {
    "read": Access.READ,
    "operator": Access.OPERATE,
    "submit": Access.SUBMIT,
}
"""Names of the keys for links and for `open --key`, weakest first."""
KEYS = "/v1/keys"
"""Answers with the keys up to the asker's own, for programs alone."""
TOKEN = "/v1/token"
"""Changes the run's token."""
RENEWAL = "/v1/token/renewal"
"""Answers with the new token to the own key of a worker that was there when it changed: no key of
the run opens it."""
RENEWAL_SECONDS = 60.0
"""How long after a change a worker may get the new token."""
NEWEST_MARKS = 8
"""Of two tokens and their keys. To prove that it knows a mark takes a head about 40 ms of a CPU."""
SHOWN_FIRST = "run"
"""Names the run that the page shows: in a link's query, and then behind the page's `#`."""
DESCRIPTION = "/v1/openapi.json"
"""Answers with the OpenAPI description of the port."""
NEEDED: Mapping[tuple[str, str], Access] = {
    ("GET", "/healthz"): Access.NONE,
    ("GET", CERTIFICATE): Access.NONE,  # before any key is sent
    ("GET", "/"): Access.READ,
    ("POST", "/"): Access.NONE,  # the form, which brings a key
    ("GET", "/metrics"): Access.READ,
    ("GET", "/v1/state"): Access.READ,
    ("GET", KEYS): Access.READ,
    ("GET", DESCRIPTION): Access.READ,
    ("GET", "/v1/events"): Access.READ,
    ("GET", "/v1/curves"): Access.READ,
    ("GET", "/v1/gpus"): Access.READ,
    ("GET", "/v1/samples"): Access.READ,
    ("GET", "/v1/runs"): Access.READ,
    ("GET", "/v1/comparison"): Access.READ,
    ("GET", "/v1/logs"): Access.READ,
    ("GET", "/v1/logs/{name}"): Access.READ,
    ("GET", "/v1/jobs"): Access.READ,
    ("GET", "/v1/jobs/{job}"): Access.READ,
    ("POST", "/v1/stop"): Access.OPERATE,
    ("POST", "/v1/jobs/{job}/stop"): Access.OPERATE,
    ("POST", "/v1/jobs"): Access.SUBMIT,
    ("POST", "/v1/pipelines"): Access.SUBMIT,
    ("PUT", "/v1/packages/{name}"): Access.SUBMIT,
    ("POST", "/v1/check-in"): Access.ALL,
    ("GET", "/v1/outcome"): Access.ALL,  # a worker's sign of life
    ("POST", "/v1/leave"): Access.ALL,
    ("POST", "/v1/left-over"): Access.ALL,
    ("POST", "/v1/health"): Access.ALL,
    ("POST", "/v1/ranks"): Access.ALL,
    ("POST", "/v1/log"): Access.ALL,
    ("POST", TOKEN): Access.ALL,
    ("POST", RENEWAL): Access.ALL,  # and not even that: see RENEWAL
}
"""What each path needs; docs/reference.md says it in its table of paths."""
PATTERNS = tuple(
    (method, re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), access)
    for (method, path), access in NEEDED.items()
)
NO_SUBMISSIONS = (
    "this cluster takes no jobs from anybody: its head was started with ROLLCALL_SUBMIT=0"
)


def needed(method: str, path: str) -> Access:
    """Return what a request needs; ALL for a path that is not in the table."""
    method = "GET" if method == "HEAD" else method
    return next(
        (need for own, pattern, need in PATTERNS if own == method and pattern.fullmatch(path)),
        Access.ALL,
    )


def too_weak(need: Access, access: Access) -> str:
    """Return why a request is declined that needs more than its key opens."""
    stronger = "" if need is Access.ALL else ", or a stronger one"
    return f"this needs {need.key}{stronger}, and {access.key} was given"


@dataclass(frozen=True, slots=True)
class _Renewal:
    """A worker that may get the new token, until a second of the monotonic clock."""

    worker: str
    until: float


class Keys:
    """The keys of one run. Every method may be called from any thread."""

    is_given = False
    """Whether the token comes from ROLLCALL_TOKEN, not from the run directory."""
    takes_jobs = True
    """Whether anybody may submit."""

    def __init__(self, token: str, given: Mapping[Access, str] | None = None) -> None:
        """`given`: keys in place of derived ones."""
        self.first = token
        """The token of the head's start, which its Ray has."""
        self._given = dict(given or {})
        self._retired: dict[str, str] = {}
        self._renewals: dict[str, _Renewal] = {}
        self._renewed: set[str] = set()
        self._use(token)

    def _use(self, token: str) -> None:
        of_token = dict(zip(DUTIES.values(), run_token.keys(token), strict=True))
        self._of = of_token | self._given | {Access.ALL: token}
        self.cookie = f"rollcall-{run_token.derived(token, 'cookie')[:8]}"
        """Name of the cookie. Browsers send the cookies of one host to all of its ports."""

    @property
    def token(self) -> str:
        return self._of[Access.ALL]

    def rotate(self, token: str, at: str, workers: Mapping[str, str]) -> None:
        """Open to this token alone. `workers`: those that may get it → their own keys."""
        self._retired |= dict.fromkeys(run_token.marks(self.token), at)
        until = time.monotonic() + RENEWAL_SECONDS
        self._renewed = set()
        self._renewals = {
            run_token.mark(own): _Renewal(worker, until) for worker, own in workers.items()
        }
        self._use(token)

    def retired(self, key: str) -> str:
        """Return when a key ceased to open anything as the token changed; "" if it did not."""
        return self._retired.get(run_token.mark(key), "")

    def newest_retired(self) -> dict[str, str]:
        """Return the marks of the keys that were replaced last → when."""
        return dict([*self._retired.items()][-NEWEST_MARKS:])

    def forget(self, retired: Mapping[str, str]) -> None:
        """Refuse the keys with these marks by the time of their end."""
        self._retired |= retired

    def renews(self, key: str) -> bool:
        """Whether this is the own key of a worker that may get the new token; notes that it did."""
        found = self._renewals.get(run_token.mark(key))
        if found is None or time.monotonic() > found.until:
            return False
        self._renewed.add(found.worker)
        return True

    def renewed(self) -> frozenset[str]:
        """Return the workers that have got the newest token."""
        return frozenset(self._renewed)

    def access(self, key: str) -> Access:
        """Return what `key` opens. Compares in constant time."""
        sent = key.encode()
        opened = [a for a, own in self._of.items() if hmac.compare_digest(sent, own.encode())]
        return max(opened, default=Access.NONE)

    def all(self) -> list[str]:
        return list(self._of.values())

    def for_browser(self, access: Access) -> str:
        """Return the key that a browser keeps: never one that runs programs."""
        return self._of[min(access, Access.OPERATE)]

    def up_to(self, access: Access) -> dict[str, str]:
        """Return the keys that open no more than `access`, by their names. Never the token."""
        known = {name: duty for name, duty in DUTIES.items() if duty <= access}
        if not self.takes_jobs:
            known.pop("submit", None)
        return {name: self._of[duty] for name, duty in known.items()}

    @property
    def read_only(self) -> str:
        return self._of[Access.READ]


def keys_of(settings: Settings, token: str) -> Keys:
    """Return the keys of the head's run. Raises ConfigError if two of them are the same."""
    keys = Keys(token, given_keys(settings, token))
    keys.is_given, keys.takes_jobs = settings.token is not None, settings.takes_jobs
    keys.forget(run_token.retired(RunFiles(settings.run_dir)))
    return keys


def given_keys(settings: Settings, token: str) -> dict[Access, str]:
    """Return the keys that settings give. Raises ConfigError if two, or one and token, are alike.

    `token`: "" if it is not known yet.
    """
    given = {
        Access.READ: settings.read_key,
        Access.OPERATE: settings.operator_key,
        Access.SUBMIT: settings.submit_key,
    }
    texts = {access: key.reveal() for access, key in given.items() if key}
    names = ("ROLLCALL_READ_KEY", "ROLLCALL_OPERATOR_KEY", "ROLLCALL_SUBMIT_KEY", "the run's token")
    seen: dict[str, str] = {}
    for access, text in {**texts, Access.ALL: token}.items():
        own = names[access - 1]
        if (other := seen.setdefault(text, own)) != own:
            problem = f"is the same as {own}, which opens more"
            remedy = "give each its own, as `openssl rand -hex 24` prints, or leave it out"
            raise ConfigError([Fault(other, MASK, problem, remedy)])
    return texts


def page_link(base: str, key: str, *, controls: bool = False, job: str = "") -> str:
    """Return the address of the page with its read-only key, or with the operator key.

    `base`: the control port's URL. `job`: what the page shows first; none: the head's run. Logs
    mask what follows `token=`, and not what follows `read=`. The operator key stands behind `#`: no
    proxy sees it. No link has the run's token: browsers keep addresses.
    """
    query = {} if controls else {"read": key}
    query |= {SHOWN_FIRST: job} if job else {}
    fragment = f"#{urlencode({'token': key})}" if controls else ""
    return f"{base.rstrip('/')}/{'?' if query else ''}{urlencode(query)}{fragment}"
