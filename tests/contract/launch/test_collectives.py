"""Ranks that others wait for, by the records of torch's flight recorder."""

from __future__ import annotations

import importlib
import json
import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from contract.launch import collectives
from contract.launch.collectives import Behind, Fault, Standing, behind, decoded, standing

NOW = 1_724_779_300.0
PUBLISHED = {
    "frames": [
        {
            "name": "test_short_pickle",
            "filename": "pytorch/test/distributed/test_c10d_nccl.py",
            "line": 3647,
        },
        {"name": "<module>", "filename": "<string>", "line": 1},
    ],
    "record_id": 0,
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 1,
    "p2p_seq_id": 0,
    "op_id": 1,
    "profiling_name": "nccl:all_reduce",
    "time_created_ns": 1724779239936775119,
    "input_sizes": [[3, 4]],
    "input_dtypes": ["Float"],
    "output_sizes": [[3, 4]],
    "output_dtypes": ["Float"],
    "state": "completed",
    "time_discovered_started_ns": None,
    "time_discovered_completed_ns": 1724779239975811724,
    "retired": True,
    "timeout_ms": 600000,
    "is_p2p": False,
}
"""An entry that NCCL's recorder wrote, from torch's tutorial on the flight recorder."""
DONE, BEGUN, QUEUED = "completed", "started", "scheduled"
Entries = Sequence[tuple[int, str, str]]
"""Number, name and state of collectives."""


def record(*entries: tuple[int, str, str], ranks: int = 4, **changes: Any) -> dict[str, Any]:
    """As NCCL's recorder writes it: `entries` are like the published one, but for `changes`."""
    group = changes.get("process_group", PUBLISHED["process_group"])
    return {
        "version": "2.5",
        "pg_config": {
            group[0]: {"name": group[0], "desc": group[1], "ranks": str([*range(ranks)])}
        },
        "pg_status": {},
        "entries": [
            {
                **PUBLISHED,
                **changes,
                "record_id": place,
                "collective_seq_id": number,
                "profiling_name": f"nccl:{name}",
                "state": state,
                "retired": state == DONE,
            }
            for place, (number, name, state) in enumerate(entries)
        ],
    }


def found(records: Mapping[int, dict[str, Any]], ranks: int = 4) -> list[Behind]:
    """What is found in the records once they have been pickled, as torch does."""
    standings = {
        rank: standing(decoded(pickle.dumps(one, protocol=2)), NOW) for rank, one in records.items()
    }
    return behind(standings, range(ranks))


def test_the_rank_that_has_not_entered_a_collective_is_named() -> None:
    there = record((811, "all_reduce", DONE), (812, "all_reduce", BEGUN), (813, "barrier", QUEUED))
    late = record((810, "barrier", DONE), (811, "all_reduce", DONE))
    (one,) = found({0: there, 1: there, 2: late, 3: there})
    assert (one.rank, one.fault, one.seq, one.waiting) == (2, Fault.ABSENT, 812, (0, 1, 3))
    assert collectives.told([one], "rank {} on worker-2".format) == (
        "rank 2 on worker-2 has not entered all-reduce 812; "
        "3 others wait in all-reduce 812 since 1 min 0 s"
    )


def test_the_rank_that_entered_another_collective_is_named_with_both() -> None:
    there = record((811, "all_reduce", DONE), (812, "all_reduce", BEGUN))
    # Torch's own names of one collective differ between its two functions for it.
    another = record((811, "allreduce", DONE), (812, "_all_gather_base", BEGUN))
    (one,) = found({0: there, 1: another, 2: there, 3: there})
    assert (one.rank, one.fault, one.entered) == (1, Fault.OTHER, "all-gather")
    assert one.sentence() == (
        "rank 1 has entered all-gather 812 in place of all-reduce of [[3, 4]] 812; "
        "3 others wait in all-reduce of [[3, 4]] 812 since 1 min 0 s"
    )


def test_another_collective_that_has_completed_on_its_rank_counts_too() -> None:
    """A rank that sends a broadcast need not wait for those that receive it."""
    there = record((5, "all_reduce", BEGUN))
    another = record((5, "broadcast", DONE), (6, "all_reduce", BEGUN))
    (one,) = found({0: there, 1: another, 2: there, 3: there})
    assert (one.rank, one.fault, one.seq) == (1, Fault.OTHER, 5)


def test_an_all_reduce_of_another_size_is_another_collective_and_a_gather_is_not() -> None:
    def records(name: str) -> dict[int, dict[str, Any]]:
        there, other = record((7, name, BEGUN)), record((7, name, BEGUN), input_sizes=[[3, 5]])
        return {0: there, 1: there, 2: other, 3: there}

    (one,) = found(records("all_reduce"))
    assert (one.rank, one.entered) == (2, "all-reduce of [[3, 5]]")
    assert not found(records("_all_gather_base"))


def test_a_rank_without_a_record_is_named_as_silent() -> None:
    there = record((812, "all_reduce", BEGUN))
    (one,) = found({0: there, 2: there, 3: there})
    assert (one.rank, one.fault) == (1, Fault.SILENT)


def test_a_rank_whose_gpu_has_not_begun_what_the_others_are_in_is_named() -> None:
    there, queued = record((812, "all_reduce", BEGUN)), record((812, "all_reduce", QUEUED))
    (one,) = found({0: there, 1: there, 2: there, 3: queued})
    assert (one.rank, one.fault, one.waiting) == (3, Fault.QUEUED, (0, 1, 2))


@pytest.mark.parametrize("state", [DONE, BEGUN, QUEUED])
def test_ranks_that_are_all_in_the_same_collective_wait_for_none(state: str) -> None:
    there = record((811, "all_reduce", DONE), (812, "all_reduce", state))
    assert not found(dict.fromkeys(range(4), there))


def test_a_rank_that_waits_itself_is_not_named_but_the_one_that_it_waits_for() -> None:
    """Rank 1 misses a collective of all, as it waits for rank 2 in one of two ranks."""
    of_all = record((812, "all_reduce", BEGUN))
    pair = record((40, "broadcast", BEGUN), process_group=("3", "pipeline"))
    pair["pg_config"]["3"]["ranks"] = "[1, 2]"
    nothing = record((811, "all_reduce", DONE))
    (one,) = found({0: of_all, 1: pair, 2: nothing, 3: of_all})
    assert one.rank == 2


def test_two_ranks_that_wait_for_each_other_in_two_groups_are_both_named() -> None:
    first = record((3, "all_reduce", BEGUN), ranks=2, process_group=("1", "first"))
    second = record((3, "all_reduce", BEGUN), ranks=2, process_group=("2", "second"))
    named = found({0: first, 1: second}, ranks=2)
    assert {(one.rank, one.waiting) for one in named} == {(1, (0,)), (0, (1,))}


def test_messages_between_two_ranks_do_not_count_as_collectives() -> None:
    sent = record((812, "all_reduce", DONE), (813, "send 0->1", BEGUN))
    sent["entries"][1]["is_p2p"] = True
    assert not found({0: sent, 1: record((812, "all_reduce", DONE))}, ranks=2)


def test_a_collective_that_failed_on_one_rank_still_names_who_was_not_there() -> None:
    ended = record((4, "all_reduce", DONE), (5, "all_reduce", DONE), ranks=2)
    late = record((4, "all_reduce", DONE), ranks=2)
    standings = {0: standing(ended, NOW), 1: standing(late, NOW)}
    assert not behind(standings, range(2))
    (one,) = behind(standings, range(2), failed=0)
    assert (one.rank, one.seq, one.waiting) == (1, 5, (0,))
    assert not behind(standings, range(2), failed=1), "it has failed by itself"


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"no record",
        pickle.dumps([1]),
        pickle.dumps(Harmful()),
        json.dumps({"entries": [{}]}).encode(),
        json.dumps({"entries": [PUBLISHED | {"process_group": []}]}).encode(),
        json.dumps({"pg_config": {"0": {"name": "0", "desc": "", "ranks": "x("}}}).encode(),
        json.dumps({"pg_config": {"0": {"name": "0", "desc": "", "ranks": "f()"}}}).encode(),
        json.dumps({"pg_config": []}).encode(),
    ],
)
def test_what_is_no_record_is_refused_and_calls_nothing(content: bytes) -> None:
    with pytest.raises(ValueError, match="no record of torch's flight recorder"):
        standing(decoded(content), NOW)


def test_torchs_own_records_are_read_as_text_and_as_pickle() -> None:
    """Of gloo, in this process: the formats that this torch really writes."""
    import torch
    from torch import distributed

    bindings: Any = importlib.import_module("torch._C._distributed_c10d")
    assert not distributed.is_initialized()
    distributed.init_process_group("gloo", store=bindings.HashStore(), rank=0, world_size=1)
    try:
        distributed.all_reduce(torch.ones(2, 3))
        distributed.barrier()
        text = bindings._dump_fr_trace_json(True, False)
        pickled = bindings._dump_fr_trace(True, True, False)
    finally:
        distributed.destroy_process_group()
    for content in (text, pickled):
        one: Standing = standing(decoded(content), NOW)
        (group,) = (g for name, g in one.groups.items() if name == "gloo default_pg")
        forms = [entry.form for entry in group.entries.values()][-2:]
        assert forms == ["all-reduce of [[2, 3]]", "barrier"]
