"""Fixtures of several scenarios."""

from __future__ import annotations

from tests.support.control import head
from tests.support.fake_ray import ray
from tests.support.http_answers import dashboard, server
from tests.support.worker_and_head import environ

__all__ = ["dashboard", "environ", "head", "ray", "server"]
