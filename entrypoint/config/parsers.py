"""Parsers: from a variable's text, stripped and not empty, to its value, or `ParseError`.

No message repeats the text: the caller, which masks secrets, decides what to show of it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from contract.files import ray_home
from contract.options import Bounds, ParseError, boolean
from entrypoint.config.durations import duration
from entrypoint.config.recipe_registry import RECIPES
from entrypoint.config.variables import Secret, is_placeholder

EnumT = TypeVar("EnumT", bound=StrEnum)


class DebugRay(StrEnum):
    """Which of Ray's two debuggers is on."""

    OFF = "off"
    LEGACY = "legacy"
    POST_MORTEM = "post-mortem"


class Tls(StrEnum):
    """Which certificates the control port and Ray have."""

    OFF = "off"
    AUTO = "auto"
    """Made ones, which the token vouches for."""
    GIVEN = "given"


class PreflightMode(StrEnum):
    """What a failed check does: stop the node, or only show. `off` runs no check."""

    STRICT = "strict"
    WARN = "warn"
    OFF = "off"


class Stragglers(StrEnum):
    """What the head does about ranks that compute more slowly than equal ones."""

    WARN = "warn"
    REPLACE = "replace"
    """Their node leaves for a spare, between two steps."""
    OFF = "off"


class LogFormat(StrEnum):
    """What a line of a node's console is."""

    TEXT = "text"
    JSON = "json"


class ServiceOn(StrEnum):
    """Which nodes start a service."""

    HEAD = "head"
    EVERY = "every"


OF_THE_SYSTEM = frozenset(
    {
        *("/", "/bin", "/boot", "/dev", "/dev/shm", "/etc", "/home", "/lib", "/lib64", "/opt"),
        *("/proc", "/root", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/local", "/var"),
        "/var/tmp",
    }
)
"""Directories that no run may have for itself."""
OF_THE_KERNEL = ("/dev", "/proc", "/sys")


def run_dir(raw: str) -> Path:
    path = Path(os.path.normpath(absolute_path(raw)))
    of_kernel = any(path.is_relative_to(top) for top in OF_THE_KERNEL)
    if str(path).replace("//", "/") in OF_THE_SYSTEM or (
        of_kernel and not path.is_relative_to("/dev/shm")
    ):
        raise ParseError("is a directory of the system", "give the run a directory of its own")
    return path


PLACEHOLDER = ("is a guide's placeholder", "give the key itself, or unset it")


def secret(raw: str) -> Secret:
    if is_placeholder(raw):
        raise ParseError(*PLACEHOLDER)
    if not re.fullmatch(r"[!-~]+", raw):
        raise ParseError("has characters that no key has", "give the key as it was issued")
    return Secret(raw)


SHORTEST_TOKEN = 16


def token(raw: str) -> Secret:
    """The cluster's secret. Who guesses it can run programs on every node."""
    given = secret(raw)
    if len(raw) < SHORTEST_TOKEN:
        raise ParseError(
            f"has fewer than {SHORTEST_TOKEN} characters",
            "give the whole of it; `openssl rand -hex 24` makes a new one of 48 characters",
        )
    return given


MOST = 1_000_000
"""Of a whole number that has no other bound."""
MOST_GPUS = 1024
"""Of a node."""
MOST_CPUS = 8192
"""Of a node."""
LAST_PORT = 65535


def whole_number(bounds: Bounds) -> Callable[[str], int]:
    """Return the parser of a whole number within `bounds`, which is MOST at most."""
    within = replace(bounds, at_most=MOST if bounds.at_most is None else bounds.at_most)

    def parse(raw: str) -> int:
        remedy = f"give a whole number from {within.at_least} to {within.at_most}"
        if not re.fullmatch(r"[+-]?[0-9]{1,12}", raw):
            raise ParseError("is not a whole number", remedy)
        if problem := within.exceeded(number := int(raw)):
            raise ParseError(problem, remedy)
        return number

    return parse


port = whole_number(Bounds(at_least=1, at_most=LAST_PORT))

BYTES = {"g": 10**9, "gb": 10**9, "gib": 2**30, "m": 10**6, "mb": 10**6, "mib": 2**20}


def size(raw: str) -> int:
    """Bytes of a GPU, from `80GB`, `80 GiB` or `81559MiB`."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([gm]i?b|[gm])", raw.lower())
    remedy = "give the memory of one GPU, such as 80GB or 81559MiB"
    if match is None:
        raise ParseError("is not a size of memory", remedy)
    found = int(float(match[1]) * BYTES[match[2]])
    if not 10**9 <= found <= 10**13:
        raise ParseError("must be from 1 GB to 10,000 GB", remedy)
    return found


SMALLEST_PORT_RANGE = 32
"""Ray's daemons take nine ports, and each of Ray's worker processes one."""


class PortRange(NamedTuple):
    """The ports from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def port_count(self) -> int:
        """How many ports it has; `len` counts its two ends."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


DAEMON_PORTS = 9
"""The first ports of the range belong to Ray's daemons, one port each."""


def port_range(raw: str) -> PortRange:
    match = re.fullmatch(r"([0-9]{1,5})\s*-\s*([0-9]{1,5})", raw)
    remedy = "give first and last port, as in 10002-10999"
    if match is None:
        raise ParseError("is not a range of ports", remedy)
    first, last = int(match[1]), int(match[2])
    if not 1 <= first < last <= LAST_PORT:
        raise ParseError(f"does not go upwards from 1 to {LAST_PORT}", remedy)
    if last - first < SMALLEST_PORT_RANGE - 1:
        raise ParseError(f"holds fewer than {SMALLEST_PORT_RANGE} ports", remedy)
    return PortRange(first, last)


def choice(kind: type[EnumT]) -> Callable[[str], EnumT]:
    def parse(raw: str) -> EnumT:
        try:
            return kind(raw.lower())
        except ValueError:
            raise ParseError("is unknown", f"give {one_of(kind)}") from None

    return parse


def of_type(kind: Any, bounds: Bounds) -> Callable[[str], Any]:
    """Return the parser of a variable that names none of its own."""
    if kind is int:
        return whole_number(bounds)
    if kind is float:
        return duration(bounds)
    parsers: Mapping[Any, Callable[[str], Any]] = {bool: boolean, Path: absolute_path, str: str}
    return parsers.get(kind) or choice(kind)


def one_of(names: Iterable[str]) -> str:
    """`a, b or c`."""
    *most, last = map(str, names)
    return f"{', '.join(most)} or {last}" if most else last


def tls(raw: str) -> Tls:
    if raw.lower() in (Tls.OFF, Tls.AUTO):
        return Tls(raw.lower())
    raise ParseError("is unknown", "give auto or off, or set ROLLCALL_TLS_CERT, _KEY and _CA")


def debug_ray(raw: str) -> DebugRay:
    if raw.lower() in ("legacy", "post-mortem"):
        return DebugRay(raw.lower())
    try:
        return DebugRay.LEGACY if boolean(raw) else DebugRay.OFF
    except ParseError:
        raise ParseError("is unknown", "give 0, 1 (the legacy debugger) or post-mortem") from None


STAGES = ("sft", "rm", "dpo")
"""The first word of a job of the recipe `supervised`."""
HELP = ("-h", "--help")


def recipe(raw: str) -> str:
    if raw.lower() not in RECIPES:
        raise ParseError("is not a recipe", f"give {one_of(RECIPES)}")
    return raw.lower()


def url(raw: str) -> str:
    remedy = "give one URL, such as http://127.0.0.1:5000"
    try:
        parts = urlsplit(raw)
        usable = parts.hostname is not None and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.scheme not in ("http", "https") or not re.fullmatch(r"[!-~]+", raw):
        raise ParseError("is not an http or https URL", remedy)
    if re.search(r",\s*https?://", raw):
        raise ParseError("holds several URLs", remedy)
    return raw


def urls(raw: str) -> tuple[str, ...]:
    """URLs, with commas between them."""
    return tuple(url(one.strip()) for one in re.split(r",(?=\s*https?://)", raw))


def webhook(raw: str) -> Secret:
    """Who knows the URL can post there."""
    return Secret(url(raw))


RAY_PORT = 6379
"""By default the port of Ray's GCS, which speaks no HTTP."""


def ray_dashboard(raw: str) -> str:
    """The URL of a Ray dashboard, with its port and without a slash at its end."""
    remedy = "give the address of Ray's dashboard, such as http://raycluster-head-svc:8265"
    if raw == "auto":
        raise ParseError("is Ray's word for a cluster on this machine, not an address", remedy)
    try:
        parts = urlsplit(raw if "://" in raw else f"http://{raw}")
        name, port = host(parts.hostname or ""), parts.port
    except ValueError:  # a ParseError, too
        raise ParseError("has no host name and port", remedy) from None
    extra = parts.username or parts.password or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or extra or port == 0:
        raise ParseError("is not the http or https URL of a Ray dashboard", remedy)
    if port == RAY_PORT:
        raise ParseError("has the port of `ray start --address`, not of the dashboard", remedy)
    port = port or (8265 if parts.scheme == "http" else 443)
    place = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    return f"{parts.scheme}://{place}{parts.path.rstrip('/')}"


def host(raw: str) -> str:
    """A host name, IPv4 or IPv6 address; IPv6 comes back without its brackets."""
    bare = raw[1:-1] if raw.startswith("[") and raw.endswith("]") else raw
    remedy = "give a host name, an IPv4 or an IPv6 address, without a port"
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        if not _is_host_name(bare):
            raise ParseError("is neither a host name nor an address", remedy) from None
        return bare
    if address.is_unspecified or address.is_multicast:
        raise ParseError("is not an address that a node can have", remedy)
    return bare


def listening_address(raw: str) -> str:
    """Where a server listens: an address, 0.0.0.0 and :: with their meaning, or a host name."""
    bare = raw[1:-1] if raw.startswith("[") and raw.endswith("]") else raw
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return host(raw)
    remedy = "give an address of this machine, or unset it to listen at all"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        raise ParseError("is an IPv4 address in IPv6's form", f"give {address.ipv4_mapped}")
    if address.version == 6 and address.is_link_local:
        raise ParseError("is link-local: it means another place on each interface", remedy)
    if address.is_multicast:
        raise ParseError("is not an address that a node can have", remedy)
    return str(address)


def _is_host_name(name: str) -> bool:
    labels = name.removesuffix(".").split(".")
    if len(name) > 253 or re.fullmatch(r"[0-9]+", labels[-1]):
        return False
    return all(re.fullmatch(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", label) for label in labels)


def host_label(raw: str) -> str:
    if "." in raw:
        raise ParseError(
            "is a host name or an address, not a pod's id",
            "give the id alone, as in abc123, or set ROLLCALL_HEAD_ADDRESS to the address",
        )
    if not _is_host_name(f"{raw}.internal"):
        raise ParseError("is not a pod's id", "give letters, digits and hyphens, as in abc123")
    return raw


NODE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""As long as a host's name may be."""


def node_name(raw: str) -> str:
    if not re.fullmatch(NODE_NAME, raw):
        raise ParseError(
            "cannot name a log file", "use at most 64 letters, digits, dots, hyphens or underscores"
        )
    return raw


def image(raw: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,254}", raw):
        raise ParseError("is no name of an image", "give its name with a tag, or its digest")
    return raw


LONGEST_START_ID = 200


def start_id(raw: str) -> str:
    """Any text of one line: nothing but that it is the same is read from it."""
    if not raw.isprintable() or len(raw) > LONGEST_START_ID:
        remedy = f"give at most {LONGEST_START_ID} characters, such as a job's id"
        raise ParseError("is no name of a start", remedy)
    return raw


RUN_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9 ._+=-]{0,62}[A-Za-z0-9._+=-])?"


def run_name(raw: str) -> str:
    if not re.fullmatch(RUN_NAME, raw):
        raise ParseError(
            "is no name of a run",
            "use at most 64 letters, digits, spaces and any of . _ + = -, a letter or digit first",
        )
    return raw


def absolute_path(raw: str) -> Path:
    if "\0" in raw or not raw.startswith("/"):
        raise ParseError("is not an absolute path", "give a path that begins with /")
    return Path(raw)


STORES = {
    **{"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"},
    **{"abfss": "adlfs", "oss": "ossfs", "oci": "ocifs", "tos": "tosfs", "hdfs": "pyarrow"},
    **{"webhdfs": "requests", "sftp": "paramiko", "smb": "smbprotocol", "webdav": "webdav4"},
    **{"hf": "huggingface_hub", "file": "fsspec"},
}
"""Scheme → the package that fsspec needs for it. Packages of others bring more schemes."""
KNOWN_STORES = f"s3://BUCKET/PREFIX; other schemes that are known: {', '.join(sorted(STORES))}"


def _is_store(scheme: str) -> bool:
    if scheme in STORES:
        return True
    from importlib import metadata  # slow to import, and nearly never needed

    return bool(metadata.entry_points(group="fsspec.specs", name=scheme))


SHARED, HEAD = "shared", "head"
"""Values of ROLLCALL_STORAGE beside the URL of a store."""


def storage(raw: str) -> str:
    if raw in (SHARED, HEAD):
        return raw
    try:
        parts = urlsplit(raw)
    except ValueError:
        problem = "is not a URL of a store"
        raise ParseError(problem, "give one such as s3://BUCKET/PREFIX") from None
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://.*", raw):
        known = f"{SHARED}, {HEAD} or a URL such as s3://BUCKET/PREFIX"
        raise ParseError("is not a place for checkpoints", f"give {known}")
    if not _is_store(parts.scheme):
        raise ParseError("has a scheme that no store has", f"give {KNOWN_STORES}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        remedy = "give scheme, bucket and prefix; AWS_ACCESS_KEY_ID and the like say the rest"
        raise ParseError("has more than a scheme, a bucket and a prefix", remedy)
    if not parts.netloc and parts.scheme != "file":
        raise ParseError("names no bucket", f"give {parts.scheme}://BUCKET or a prefix below it")
    return raw.rstrip("/")


def ray_temp_dir(raw: str) -> Path:
    """A directory short enough for Ray's sockets below it."""
    path = absolute_path(raw)
    if len(raw.encode(errors="surrogateescape")) > ray_home.LONGEST:
        raise ParseError(
            "is too long for the sockets that Ray puts below it",
            f"give a path of at most {ray_home.LONGEST} characters",
        )
    return path


QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
SHELL_SYNTAX = re.compile(
    r"(?:(?<!\S)[0-9])?[|&;<>]+(?:[0-9](?!\S))?|`|\$(?=[A-Za-z_{(])",
)
BY_A_SHELL = "for a pipe, a redirection or a variable give bash -c '…'"


def arguments(raw: str) -> tuple[str, ...]:
    """The words of a command line. No shell reads them, so shell syntax outside quotes is wrong."""
    try:
        words = tuple(shlex.split(raw))
    except ValueError:
        raise ParseError("has a quote that is not closed", "quote it as in a shell") from None
    if found := SHELL_SYNTAX.search(QUOTED.sub("''", raw)):
        problem = f"has the shell syntax {found[0]}, and no shell reads it"
        raise ParseError(problem, f"quote {found[0]} where it is text; {BY_A_SHELL}")
    return words


def names(raw: str) -> frozenset[str]:
    return frozenset(re.split(r"[,\s]+", raw.strip(", ")))


RESERVED_RESOURCES = {
    "CPU": "set ROLLCALL_NUM_CPUS instead",
    "GPU": "set ROLLCALL_NUM_GPUS instead",
    "memory": "limit the container's memory instead",
    "object_store_memory": "leave it to Ray",
}


def resources(raw: str) -> dict[str, float]:
    """Custom Ray resources from a JSON object of names and whole, non-negative amounts."""
    remedy = 'give a JSON object of names and whole amounts, such as {"v100": 8}'
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        raise ParseError("is not JSON", remedy) from None
    if not isinstance(parsed, dict) or "" in parsed:
        raise ParseError("is not a JSON object of names and amounts", remedy)
    for name, amount in parsed.items():
        if name in RESERVED_RESOURCES:
            raise ParseError(f"names {name}, which is Ray's own", RESERVED_RESOURCES[name])
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not number or not 0 <= amount <= 1_000_000_000 or amount != int(amount):
            raise ParseError("holds an amount that is not a whole number of 0 or more", remedy)
    return {name: float(amount) for name, amount in parsed.items()}
