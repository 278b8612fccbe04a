"""The process of the peers, when a test is cut off in the middle of a call."""

from __future__ import annotations

import os
import signal
import threading
from typing import NoReturn

import pytest

from tests.oracles.process import Peers


def test_an_answer_to_a_call_that_was_cut_off_is_not_taken_for_the_next_one_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_off(*_: object) -> NoReturn:
        raise TimeoutError

    peers = Peers()
    before = signal.signal(signal.SIGUSR1, cut_off)
    try:
        later = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
        later.start()
        with pytest.raises(TimeoutError):
            peers._call("subprocess", "run", {"args": ["sleep", "5"]})
        later.join()
        assert peers._call("json", "dumps", {"obj": [2]}) == "[2]"
    finally:
        signal.signal(signal.SIGUSR1, before)
        peers.close()
