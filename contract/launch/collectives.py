"""Where ranks stand among their collectives, and which of them the others wait for.

The records are those of torch's flight recorder: `_dump_fr_trace_json` has gloo's collectives,
`_dump_nccl_trace_json` NCCL's. Torch writes the same fields to files as a pickle
(torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.10 of the format).
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from contract.durations import duration

KEPT = 64
"""Newest collectives of a group that a standing has: a rank is rarely so far ahead."""
DEFAULT_GROUP = "default_pg"
SAME_SIZE = frozenset({"all-reduce", "broadcast", "reduce"})
"""Collectives to which all ranks give tensors of one size."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A collective that a rank has entered."""

    name: str
    size: str
    """Sizes of its tensors, if all ranks must give the same; else empty."""
    seconds: float
    """Since it was entered."""
    done: bool
    begun: bool
    """The GPU has begun it. On CPUs this is not recorded, and so false."""

    @property
    def form(self) -> str:
        return f"{self.name} of {self.size}" if self.size else self.name


@dataclass(frozen=True, slots=True)
class Group:
    """What a rank has entered in one process group."""

    ranks: tuple[int, ...] = ()
    """Its members; empty if the record does not say."""
    entries: Mapping[int, Entry] = field(default_factory=dict)
    """Sequence number → collective, the newest."""

    @property
    def newest(self) -> int:
        return max(self.entries, default=0)

    @property
    def awaited(self) -> int | None:
        """The first collective that the rank still waits in; groups complete in order."""
        done = max((seq for seq, entry in self.entries.items() if entry.done), default=0)
        return min((seq for seq in self.entries if seq > done), default=None)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one rank stands."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    at: str = ""
    """Line and function of its own code that it executes; empty: not known."""


class Fault(Enum):
    """What a rank does that the others wait for."""

    ABSENT = auto()
    OTHER = auto()
    SILENT = auto()
    QUEUED = auto()
    """It has entered the collective, and its GPU has not begun it."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A rank that others wait for."""

    rank: int
    fault: Fault
    seq: int
    awaited: str
    """The collective in which the others wait."""
    waiting: tuple[int, ...]
    seconds: float
    """How long all of `waiting` have waited."""
    entered: str = ""
    """What the rank has entered in its place."""
    at: str = ""

    def sentence(self, who: Callable[[int], str] = "rank {}".format) -> str:
        """Return what the rank has not done. `who`: names a rank, its node and its GPU."""
        what = f"{self.awaited} {self.seq}"
        told = {
            Fault.ABSENT: f"has not entered {what}",
            Fault.OTHER: f"has entered {self.entered} {self.seq} in place of {what}",
            Fault.SILENT: f"does not say where it is, and has not completed {what}",
            Fault.QUEUED: f"has entered {what}, and its GPU has not begun it",
        }[self.fault]
        at = f" (it is at {self.at})" if self.at else ""
        return f"{who(self.rank)} {told}{at}; {self.who_waits(who)}"

    def who_waits(self, who: Callable[[int], str] = "rank {}".format) -> str:
        one = len(self.waiting) == 1
        others = f"{who(self.waiting[0])} waits" if one else f"{len(self.waiting)} others wait"
        return f"{others} in {self.awaited} {self.seq} since {duration(self.seconds)}"


def told(found: Iterable[Behind], who: Callable[[int], str] = "rank {}".format) -> str:
    """Return one sentence about all ranks that the others wait for."""
    return "; ".join(one.sentence(who) for one in found)


def standing(record: Mapping[str, Any], now: float, at: str = "") -> Standing:
    """Return the standing of a record. `now`: seconds after the epoch, by that rank's clock.

    Raises ValueError for something else than a record.
    """
    try:
        named = _members(record)
        entries: dict[tuple[str, str], dict[int, Entry]] = {}
        for raw in record.get("entries", ()):
            if not raw["is_p2p"]:  # they are between two ranks, and have numbers of their own
                backend = raw["profiling_name"].partition(":")[0]
                group = entries.setdefault((backend, _name(raw["process_group"])), {})
                group[int(raw["collective_seq_id"])] = _entry(raw, now)
        groups = {
            f"{backend} {name}": Group(named.get(name, ()), dict(sorted(found.items())[-KEPT:]))
            for (backend, name), found in entries.items()
        }
        return Standing(groups, at)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(f"no record of torch's flight recorder: {error!r}") from None


def joint(records: Iterable[bytes], now: float, at: str = "") -> Standing:
    """Return the standing of a rank that has several records: of gloo, of NCCL.

    `now`: seconds after the epoch, by that rank's clock. Raises ValueError.
    """
    groups: dict[str, Group] = {}
    for content in records:
        groups |= standing(decoded(content), now).groups
    return Standing(groups, at)


def decoded(content: bytes) -> dict[str, Any]:
    """Return a record that torch has written, as JSON or as a pickle of plain values.

    Raises ValueError for anything else, such as a pickle that calls something.
    """
    try:
        found = json.loads(content) if content[:1] == b"{" else _Plain(io.BytesIO(content)).load()
    except Exception as error:
        raise ValueError(f"no record of torch's flight recorder: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("no record of torch's flight recorder")
    return found


def behind(
    standings: Mapping[int, Standing], ranks: Sequence[int], failed: int | None = None
) -> list[Behind]:
    """Return the ranks that the others wait for; none if no rank waits, or all are there.

    `ranks`: all ranks; one without a standing did not answer. `failed`: a rank whose newest
    collective has failed. A rank that itself waits for another one is left out, unless they wait
    for each other.
    """
    found: list[Behind] = []
    for name in sorted({name for one in standings.values() for name in one.groups}):
        groups = {rank: one.groups.get(name, Group()) for rank, one in standings.items()}
        found += _behind_in(name, standings, groups, ranks, failed)
    held = {rank for one in found for rank in one.waiting}
    roots = [one for one in found if one.rank not in held or one.fault is not Fault.ABSENT]
    return list({one.rank: one for one in reversed(roots or found)}.values())[::-1]


def _behind_in(
    name: str,
    standings: Mapping[int, Standing],
    groups: Mapping[int, Group],
    ranks: Sequence[int],
    failed: int | None,
) -> list[Behind]:
    awaited = {rank: seq for rank, one in groups.items() if (seq := one.awaited) is not None}
    if failed is not None and failed not in awaited and (newest := _newest(groups, failed)):
        awaited[failed] = newest
    if not awaited:
        return []
    seq = min(awaited.values())
    given_up = [rank for rank, one in groups.items() if failed is not None and one.newest == seq]
    waiting = sorted({*given_up, *(rank for rank, own in awaited.items() if own == seq)})
    there = {rank: one.entries[seq] for rank, one in groups.items() if seq in one.entries}
    forms = Counter(there[rank].form for rank in sorted(there))
    (form, _), *_ = forms.most_common()
    named = {rank for one in groups.values() for rank in one.ranks}
    with_entries = {rank for rank, one in groups.items() if one.entries}
    members = named or (set(ranks) if name.endswith(DEFAULT_GROUP) else with_entries)
    begun = any(entry.begun for entry in there.values())
    faults: dict[int, Fault] = {}
    for rank in sorted(members):
        if rank not in standings:
            faults[rank] = Fault.SILENT
        elif rank not in there:
            faults[rank] = Fault.ABSENT
        elif there[rank].form != form:
            faults[rank] = Fault.OTHER
        elif begun and not there[rank].begun and rank in waiting:
            faults[rank] = Fault.QUEUED
    rest = tuple(rank for rank in waiting if rank not in faults)
    if not rest:
        return []
    since = min(there[rank].seconds for rank in rest)
    return [
        Behind(
            rank,
            fault,
            seq,
            form if fault is Fault.OTHER else there[rest[0]].name,
            rest,
            since,
            there[rank].form if rank in there else "",
            standings[rank].at if rank in standings else "",
        )
        for rank, fault in faults.items()
        if fault is not Fault.ABSENT or groups[rank].newest < seq
    ]


def _newest(groups: Mapping[int, Group], rank: int) -> int:
    return groups[rank].newest if rank in groups else 0


def _members(record: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the members of each group that the record names; gloo names none of its groups."""
    found = {}
    for raw in record.get("pg_config", {}).values():
        if raw["name"]:
            ranks = json.loads(raw["ranks"]) if raw["ranks"] else ()
            found[_name((raw["name"], raw["desc"]))] = tuple(map(int, ranks))
    return found


def _name(group: Sequence[str]) -> str:
    name, description = group[0], group[1]
    return DEFAULT_GROUP if description == DEFAULT_GROUP else f"{name} {description}"


def _entry(raw: Mapping[str, Any], now: float) -> Entry:
    short = re.sub(r"_base$|_coalesced$", "", raw["profiling_name"].split(":")[-1].strip("_"))
    name = short.replace("allreduce", "all_reduce").replace("allgather", "all_gather")
    name = name.replace("_", "-")
    size = str(raw["input_sizes"]) if name in SAME_SIZE else ""
    return Entry(
        name=name,
        size=size,
        seconds=max(0.0, now - raw["time_created_ns"] / 1e9),
        done=bool(raw["retired"]) or raw["state"] == "completed",
        begun=raw["state"] == "started",
    )


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries alone: a job may have written the file."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")
