"""Hydra's options of files: the primary one's name and directory, and one more directory."""

from __future__ import annotations

NAME, PATH, MORE = "--config-name", "--config-path", "--config-dir"
OPTIONS = {"-cn": NAME, "-cp": PATH, "-cd": MORE} | {name: name for name in (NAME, PATH, MORE)}
"""Each spelling → its option."""
