"""The messages to a node's main thread."""

from __future__ import annotations

import time
from pathlib import Path

from entrypoint.processes import inbox
from entrypoint.processes.inbox import Inbox, StopAsked


def test_a_preemption_file_is_noticed_after_an_error_of_its_storage(tmp_path: Path) -> None:
    directory = tmp_path / "notices"
    directory.symlink_to("x" * 300)  # ENAMETOOLONG, which is not "no such file"
    messages = Inbox()
    messages.listen_to_file(directory / "preempted")
    time.sleep(0.5 * inbox.FILE_POLL_SECONDS)
    directory.unlink()
    directory.mkdir()
    (directory / "preempted").touch()
    assert isinstance(messages.take(timeout=20 * inbox.FILE_POLL_SECONDS), StopAsked)


def test_a_node_goes_on_after_its_role_as_head_unless_it_was_asked_to_stop_itself(
    tmp_path: Path,
) -> None:
    notice = tmp_path / "preempted"
    messages = Inbox()
    messages.listen_to_file(notice)
    messages.put(StopAsked("a later head has the run", has_successor=True))
    assert messages.stop.is_set()
    assert messages.follow_successor()
    assert (messages.stop.is_set(), messages.take(timeout=0)) == (False, None)
    notice.touch()  # it is still watched
    stop = messages.take(timeout=20 * inbox.FILE_POLL_SECONDS)
    assert isinstance(stop, StopAsked)
    assert messages.stop.is_set()

    messages.put(StopAsked("a later head has the run", has_successor=True))
    messages.put(StopAsked("SIGTERM"))
    assert not messages.follow_successor()
    assert messages.stop.is_set()
    assert messages.take(timeout=0) == StopAsked("SIGTERM")
