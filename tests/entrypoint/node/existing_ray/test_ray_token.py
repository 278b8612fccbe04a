"""The token of a Ray that exists already."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.options import ConfigError
from entrypoint.config.read import read_settings
from entrypoint.node.existing_ray.cluster import token_of_ray


def token(**environ: str) -> str:
    return token_of_ray(read_settings({"ROLLCALL_NODE_NAME": "here", **environ}))


def test_the_token_comes_from_rays_own_variables(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-the-file\n")
    assert token(RAY_AUTH_TOKEN="unused") == ""
    assert token(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="direct") == "direct"
    assert token(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(file)) == "from-the-file"


def test_a_missing_token_is_a_fault_in_words(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for path, why in ((tmp_path / "none", "cannot be read"), (empty, "is empty")):
        with pytest.raises(ConfigError, match=rf"RAY_AUTH_MODE='token'.*{why}.*RAY_AUTH_TOKEN"):
            token(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(path))
