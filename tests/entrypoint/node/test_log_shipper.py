"""A worker's logs at a head that does not share its run directory."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from entrypoint.cluster.worker_logs import MOST_BYTES, belongs
from entrypoint.net.wait import NotYetError
from entrypoint.node import log_shipper
from entrypoint.node.log_shipper import OwnLogs
from tests.support.control import TOKEN, Head, head
from tests.support.waiting import eventually

__all__ = ["head"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    directory = tmp_path / "worker" / "logs"
    directory.mkdir(parents=True)
    (directory / "worker-1.log").write_text("of an earlier life\n")
    return directory


def test_the_head_has_what_a_worker_s_logs_gain(
    head: Head, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_shipper, "EVERY_SECONDS", 0.05)
    logs = OwnLogs(own, "worker-1", "a life")
    (own / "ray-worker-1.log").write_bytes(b"r" * (MOST_BYTES + 5))
    (own / "ray-worker-2.log").write_text("of another node on this disk")
    here = head.run.logs
    with log_shipper.sending(logs, head.client()):
        with (own / "worker-1.log").open("a") as file:
            file.write("checked in\n")
        eventually(lambda: (here / "worker-1.log").exists())
    (own / "worker-1.log").write_text("begun anew\n")
    with log_shipper.sending(logs, head.client()):
        pass
    assert (here / "worker-1.log").read_text() == "checked in\nbegun anew\n"
    assert (here / "ray-worker-1.log").stat().st_size == MOST_BYTES + 5
    assert not (here / "ray-worker-2.log").exists()


@pytest.mark.parametrize("moved", [True, False], ids=["beside", "cut"])
def test_a_log_that_is_begun_anew_and_is_longer_at_once_is_there_whole(
    head: Head, own: Path, *, moved: bool
) -> None:
    logs, log = OwnLogs(own, "worker-1", "a life"), own / "worker-1.log"
    before = "of an earlier life\n" if moved else ""  # the same beginning in another file
    (own / "ray-worker-1.log").write_text(f"{before}the first Ray\n")
    logs.send(head.client())
    for path in (log, own / "ray-worker-1.log"):
        if moved:
            path.rename(path.with_suffix(".1"))
        path.write_text(f"{before}another, which is longer at the next look\n")
    logs.send(head.client())
    logs.send(head.client())
    anew = f"{before}another, which is longer at the next look\n"
    assert (head.run.logs / "worker-1.log").read_text() == anew
    assert (head.run.logs / "ray-worker-1.log").read_text() == f"{before}the first Ray\n{anew}"


def test_a_part_whose_answer_was_lost_is_there_once(head: Head) -> None:
    client = head.client()
    where = {"node": "one", "life": "a", "file": "ray-one.log"}
    client.send_log(where | {"offset": "10"}, b"first ")
    client.send_log(where | {"offset": "10"}, b"first second ")
    client.send_log(where | {"offset": "0", "life": "b"}, b"third")
    assert (head.run.logs / "ray-one.log").read_bytes() == b"first second third"


def test_parts_that_come_while_the_head_is_away_are_sent_later(head: Head, own: Path) -> None:
    logs = OwnLogs(own, "worker-1", "a life")
    (own / "ray-worker-1.log").write_text("while the head is away")
    away = head.client()
    away.close()
    with pytest.raises(NotYetError):
        logs.send(away)
    logs.send(head.client())
    assert (head.run.logs / "ray-worker-1.log").read_text() == "while the head is away"


@pytest.mark.parametrize(
    ("file", "fits"),
    [
        ("worker-1.log", True),
        ("ray-worker-1.log", True),
        ("stacks-attempt-3-worker-1.txt", True),
        ("reward-worker-1.log", True),
        ("head.log", False),
        ("attempt-1.log", False),
        ("worker-2.log", False),
        ("../x-worker-1.log", False),
        ("a/ray-worker-1.log", False),
        ("ray-worker-1.json", False),
    ],
)
def test_a_worker_writes_no_file_but_its_own(head: Head, file: str, *, fits: bool) -> None:
    assert belongs(file, "worker-1") is fits
    answer = httpx.post(
        f"http://127.0.0.1:{head.port}/v1/log",
        params={"node": "worker-1", "life": "a", "file": file, "offset": 0},
        headers={"Authorization": f"Bearer {TOKEN}"},
        content=b"x",
    )
    assert answer.status_code == (200 if fits else 400)
    assert [path.name for path in head.run.root.rglob("*") if path.is_file()] == [file] * fits


def test_a_part_that_is_too_long_or_lacks_its_place_is_refused(head: Head) -> None:
    where = {"node": "one", "life": "a", "file": "ray-one.log"}
    for query, content in ((where | {"offset": "0"}, b"x" * (MOST_BYTES + 1)), (where, b"x")):
        answer = httpx.post(
            f"http://127.0.0.1:{head.port}/v1/log",
            params=query,
            headers={"Authorization": f"Bearer {TOKEN}"},
            content=content,
        )
        assert answer.status_code == 400
    assert not head.run.logs.exists()
