"""Clients of the cluster's own servers."""

from __future__ import annotations

import ssl
from typing import Any

import httpx
import pytest

from entrypoint.cluster.client import ControlClient
from entrypoint.net import http


def test_all_clients_of_a_process_load_the_certificates_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load, loads = ssl.SSLContext.load_verify_locations, list[object]()

    def counted(context: ssl.SSLContext, *given: Any, **named: Any) -> None:
        loads.append(context)
        load(context, *given, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    http.tls.cache_clear()
    for url in (None, "http://127.0.0.1:1", "https://127.0.0.1:1"):
        ControlClient("127.0.0.1", 1, "token", url).close()
        httpx.Client(transport=http.direct()).close()
    assert len(loads) == 1


def test_the_words_of_an_error_end_without_a_full_stop_as_others_follow_them() -> None:
    silent = httpx.RemoteProtocolError("Server disconnected without sending a response.")
    assert http.said_by(silent) == "Server disconnected without sending a response"
    assert http.said_by(httpx.ReadTimeout("")) == "ReadTimeout"
