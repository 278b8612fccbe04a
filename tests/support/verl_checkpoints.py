"""A tree of files that is true to verl's FSDP checkpoints; the tensors are empty."""

from __future__ import annotations

from pathlib import Path

from tests.support.hf_checkpoints import torch_file


def checkpoint(directory: Path, step: int, world: int = 2, *roles: str) -> Path:
    """Write actor and critic (or `roles`), and then the step as the newest complete one."""
    path = directory / f"global_step_{step}"
    for role in roles or ("actor", "critic"):
        for rank in range(world):
            for kind in ("model", "optim", "extra_state"):
                torch_file(path / role / f"{kind}_world_size_{world}_rank_{rank}.pt")
        (path / role).mkdir(parents=True, exist_ok=True)
        (path / role / "fsdp_config.json").write_text("{}")
    torch_file(path / "data.pt")
    (directory / "latest_checkpointed_iteration.txt").write_text(str(step))
    return path
