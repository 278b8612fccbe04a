"""A worker's side of the head's HTTP, where no head answers."""

from __future__ import annotations

import httpx
import pytest

from entrypoint import wait
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


def test_a_head_whose_name_leads_elsewhere_is_given_up_at_the_first_answer_that_fails(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Message] = []
    asked: list[str] = []
    client = head.client()

    def fails(method: str, path: str, **options: object) -> httpx.Response:
        asked.append(path)
        raise wait.NotYetError("no route to host")

    monkeypatch.setattr(client, "ask", fails)
    client.watch("a", "first", said.append, is_there=lambda: False)
    eventually(lambda: bool(said))
    assert said == [HeadLost("no route to host, and its name leads elsewhere now")]
    assert len(asked) == 1
