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
