"""Models of the hub on a node of the run. Torch-free."""

from __future__ import annotations

from trainer.config.checks import model_faults
from trainer.config.config import Config
from trainer.models import hub
from trainer.types import UnfitModelError


def fetched(config: Config) -> dict[str, str]:
    """Name → its directory on this node, where its files are looked at as those of a directory are.

    Raises HubError, UnfitModelError, and OSError where the disk fails.
    """
    found = hub.fetch_all(hub.models(config))
    if faults := model_faults(hub.located(config, found)):
        raise UnfitModelError("\n".join(faults))
    return found
