"""Fixtures of several units of the entrypoint."""

from __future__ import annotations

from tests.support.control import head, strict
from tests.support.fake_ray import ray
from tests.support.http_answers import dashboard, server

__all__ = ["dashboard", "head", "ray", "server", "strict"]
