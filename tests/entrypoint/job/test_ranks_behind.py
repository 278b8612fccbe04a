"""Which ranks of a job are told of, by what their nodes say."""

from __future__ import annotations

from contract.launch.collectives import Entry, Group, Standing
from entrypoint.job.ranks_behind import OfNodes, RanksBehind, Told, behind
from entrypoint.processes.rank_processes import RankProcess

DONE = Entry("all-reduce", "[[4]]", 60.0, done=True, begun=False)
WAITS = Entry("all-reduce", "[[4]]", 45.0, done=False, begun=False)
GROUP = "gloo default_pg"


def rank(
    number: int, *, waits: bool, world: int = 3, meeting: str = "a:1", at: str = ""
) -> RankProcess:
    entries = {1: DONE, 2: WAITS} if waits else {1: DONE}
    standing = Standing({GROUP: Group((), entries)}, at)
    return RankProcess(100 + number, "", number, world, meeting, standing)


def sentences(of_nodes: OfNodes) -> list[str]:
    return [one.sentence for one in behind(of_nodes)]


def test_two_programs_of_one_job_are_told_of_apart() -> None:
    of_nodes = {
        "head": [rank(0, waits=True), rank(1, waits=False), rank(0, waits=False, meeting="b:2")],
        "worker-1": [rank(2, waits=True), rank(1, waits=True, meeting="b:2", world=2)],
    }
    other = rank(0, waits=False, meeting="b:2", world=2)
    of_nodes["head"][2] = other
    assert sentences(of_nodes) == [
        "rank 1 on head (process 101) has not entered all-reduce 2; 2 others wait in all-reduce 2 "
        "since 45 s",
        "rank 0 on head (process 100) has not entered all-reduce 2; rank 1 on worker-1 (process "
        "101) waits in all-reduce 2 since 45 s",
    ]


def test_an_actor_that_does_not_answer_is_the_one_rank_that_lacks() -> None:
    silent = RankProcess(812, "ray::Actor")
    of_nodes = {"head": [rank(0, waits=True), rank(1, waits=True)], "worker-1": [silent]}
    (sentence,) = sentences(of_nodes)
    assert sentence.startswith("rank 2 on worker-1 (ray::Actor, process 812) does not say where")


def test_of_several_that_do_not_answer_the_place_is_left_out() -> None:
    silent = [RankProcess(812), RankProcess(813)]
    of_nodes = {"head": [rank(0, waits=True), rank(1, waits=True)], "worker-1": silent}
    (sentence,) = sentences(of_nodes)
    assert sentence.startswith("rank 2 does not say where it is")


def test_what_a_console_would_obey_is_left_out_of_the_sentence() -> None:
    late = rank(1, waits=False, at="\x1b[2Jx.py:3 in f\n")
    (told,) = behind({"head": [rank(0, waits=True), late, rank(2, waits=True)]})
    assert told.sentence.isprintable()
    assert "x.py:3 in f" in told.sentence


def test_a_rank_is_told_of_once_until_the_job_goes_on() -> None:
    told: list[Told] = []
    of_nodes = {"head": [rank(0, waits=True), rank(1, waits=False), rank(2, waits=True)]}
    looks = RanksBehind(lambda: of_nodes, told.append)
    looks.look(silent=600.0)
    assert told == [], "the first look is a minute after the start"
    looks._looked = -1e9
    for silent in (600.0, 660.0):
        looks.look(silent)
        looks._looked = -1e9
    assert looks.of_end() == told[0].sentence
    assert len(told) == 1
    looks.look(silent=1.0)
    looks._looked = -1e9
    looks.look(silent=600.0)
    assert len(told) == 2
