"""The setting that turns the fork server on, for nodes that tests start."""

from __future__ import annotations

FORK_SERVER = {"ROLLCALL_FORK_SERVER": "1"}
"""Tests start hundreds of Ray workers on two cores, and each import takes 4 s of a core.

The default is off: a test of the default overrides this with DEFAULT.
"""
DEFAULT = {"ROLLCALL_FORK_SERVER": ""}
"""An empty variable counts as not set."""
