"""Waiting: until there, until the deadline, until asked to stop; and a line as time goes by."""

import logging
import threading

import pytest

from entrypoint.net import sockets, wait
from entrypoint.net.http import status_of
from entrypoint.net.wait import GaveUpError, InterruptedWaitError, NotYetError


def test_it_returns_what_the_probe_returns_once_it_passes() -> None:
    answers = iter([NotYetError("no"), NotYetError("no"), None])

    def probe() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "there"

    assert wait.until("it", probe, timeout=10, stop=threading.Event()) == "there"


def never() -> None:
    raise NotYetError("the door is shut")


def test_the_deadline_says_what_was_waited_for_how_long_and_the_last_answer() -> None:
    with pytest.raises(GaveUpError, match=r"the head: not there after 0\.3 s \(the door is shut\)"):
        wait.until("the head", never, timeout=0.3, stop=threading.Event())


def test_the_sentence_names_the_variable_that_sets_the_deadline() -> None:
    with pytest.raises(GaveUpError) as gave_up, wait.limited_by("ROLLCALL_HEAD_TIMEOUT"):
        wait.until("the head", never, timeout=0.1, stop=threading.Event())
    assert str(gave_up.value).endswith("(the door is shut); ROLLCALL_HEAD_TIMEOUT sets this limit")


def test_a_request_to_stop_ends_a_wait_at_once() -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(InterruptedWaitError):
        wait.until("it", never, timeout=60, stop=stop)


def test_an_error_that_is_no_not_yet_is_not_retried() -> None:
    def broken() -> None:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        wait.until("it", broken, timeout=60, stop=threading.Event())


def test_it_says_a_line_as_time_goes_by(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "SAY_AFTER_SECONDS", (0.2, 60))
    with caplog.at_level(logging.INFO), pytest.raises(GaveUpError):
        wait.until("the head", never, timeout=1.5, stop=threading.Event())
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("waiting for the head: the door is shut (")


def test_backoff_doubles_with_jitter_up_to_its_ceiling() -> None:
    for failures, ceiling in ((1, 1.0), (2, 2.0), (3, 4.0), (20, 60.0)):
        pauses = [wait.backoff(failures) for _ in range(50)]
        assert all(ceiling / 2 <= pause <= ceiling for pause in pauses)
        assert len(set(pauses)) > 1


def test_a_closed_port_is_named(closed_port: int) -> None:
    with pytest.raises(NotYetError, match=f"127.0.0.1 port {closed_port}"):
        sockets.connect("127.0.0.1", closed_port)


def test_abort_ends_a_wait_for_what_cannot_come_any_more_after_a_failed_try() -> None:
    def moved() -> None:
        raise LookupError("the head is elsewhere")

    def silent() -> None:
        raise NotYetError("no route to host")

    stop = threading.Event()
    with pytest.raises(LookupError, match="elsewhere"):
        wait.until("it", silent, timeout=60, stop=stop, abort=moved)
    assert wait.until("it", lambda: "here", timeout=60, stop=stop, abort=moved) == "here"


@pytest.mark.parametrize("status", [200, 404, 405, 501])
def test_a_post_only_server_counts_as_ready(server: str, status: int) -> None:
    assert status_of(f"{server}/{status}") == status


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_proxy_without_its_server_is_not_ready(server: str, status: int) -> None:
    with pytest.raises(NotYetError, match=str(status)):
        status_of(f"{server}/{status}")
