"""Rotary embeddings whose frequencies depend on how long a sequence is.

transformers chooses them once for a whole pass, by the longest position in it: what a sample is
worth would depend on those beside it.
"""

from __future__ import annotations

from typing import Any


def apart(config: Any) -> int | None:
    """Positions above which a sequence has other frequencies (longrope); None: all have the same.

    `config`: transformers' of a model. With --max_len within the positions of pretraining, no
    sequence is that long.
    """
    given = getattr(config.get_text_config(), "rope_parameters", None) or {}
    of_layers = [one for one in given.values() if isinstance(one, dict)]  # by type of layer
    found = [
        one["original_max_position_embeddings"]
        for one in (given, *of_layers)
        if one.get("rope_type") == "longrope"
    ]
    return min(found, default=None)
