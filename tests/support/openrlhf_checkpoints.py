"""A tree of files that is true to OpenRLHF's checkpoints of DeepSpeed's ZeRO 2; without tensors."""

from __future__ import annotations

from pathlib import Path

from tests.support.hf_checkpoints import torch_file


def checkpoint(directory: Path, step: int, *roles: str, ranks: int = 2) -> Path:
    """Write actor and critic (or `roles`; "" for none), each with `latest` at the end."""
    for role in roles or ("_actor", "_critic"):
        path = directory / role / f"global_step{step}"
        torch_file(path / "mp_rank_00_model_states.pt")
        for rank in range(ranks):
            torch_file(path / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        (directory / role / "latest").write_text(path.name)
        (path / "metric.json").write_text('{"metric_key": null, "metric_value": null}')
    return path
