"""The token of a Ray that this node did not start, from Ray's own variables."""

from __future__ import annotations

from pathlib import Path

from contract.options import ConfigError, Fault
from entrypoint.config.settings import Settings

DEFAULT_FILE = Path("~/.ray/auth_token")


def of_existing_ray(settings: Settings) -> str:
    """The token; "" if Ray has none (RAY_AUTH_MODE is not `token`).

    Raises ConfigError if Ray has one and its variables give none.
    """
    environ = settings.environ
    if environ.get("RAY_AUTH_MODE", "").strip().lower() != "token":
        return ""
    if token := environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    named = environ.get("RAY_AUTH_TOKEN_PATH", "").strip()
    path = Path(named or DEFAULT_FILE).expanduser()
    try:
        token = path.read_text().strip()
        why = "" if token else "is empty"
    except (OSError, ValueError) as error:
        token, why = "", f"cannot be read ({getattr(error, 'strerror', None) or 'no text'})"
    if not token:
        remedy = "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that has the token"
        problem = f"asks for Ray's token, and {path} {why}"
        raise ConfigError([Fault("RAY_AUTH_MODE", "token", problem, remedy)])
    return token
