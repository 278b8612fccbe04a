"""Names that DeepSpeed, and OpenRLHF around it, give to the parts of a checkpoint."""

from __future__ import annotations

ACTOR, CRITIC = "_actor", "_critic"
"""OpenRLHF's directories of the two models of PPO."""
LATEST = "latest"
"""The file, beside the checkpoints, that has the name of the newest one; it is written last."""
STEPS = "global_step*"
"""The checkpoints of all steps."""
MODEL_STATES = "_model_states.pt"
"""Ends the name of each file with weights."""
