"""A worker's side of the head's HTTP, where no head answers."""

from __future__ import annotations

import httpx
import pytest

from entrypoint.inbox import HeadLost, Message
from tests.entrypoint.test_control import Head, eventually, head

__all__ = ["head"]


def test_what_is_no_answer_of_a_head_ends_a_membership_and_not_the_watch(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Message] = []
    client = head.client()
    monkeypatch.setattr(
        client, "ask", lambda *_, **__: httpx.Response(200, text="<html>log in</html>")
    )
    client.watch("a", "first", said.append)
    eventually(lambda: bool(said))
    assert isinstance(said[0], HeadLost)
