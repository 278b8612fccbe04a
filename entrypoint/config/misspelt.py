"""Names of the environment that are like those of settings, and are or are not meant as such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from contract.launch.command_lines import PASSED_ON
from contract.options import nearest
from entrypoint.config.settings import variable_names

MISSPELT = 0.92
"""difflib's ratio from which a name counts as a misspelt variable: one letter is wrong."""
ALIKE = 0.8
"""From which a name may be one, or another program's: a word is missing or added."""


def service_links(environ: Mapping[str, str]) -> tuple[str, ...]:
    """How the names begin that Kubernetes sets for the services of the namespace."""
    return tuple(
        f"{service.removesuffix('_SERVICE_HOST')}_{kind}"
        for service in environ
        for kind in ("SERVICE_", "PORT")
        if service.endswith("_SERVICE_HOST")
    )


def alike(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each name that may be a misspelt variable without our prefix, and that variable.

    The name is none that a platform or a library has for itself. If the variable is set, too, the
    name is nearly the same, and has another value.
    """
    theirs = (*PASSED_ON, "RUNPOD_", "KUBERNETES_", *service_links(environ))
    unset = [one for one in variable_names() if "ROLLCALL" not in one and not environ.get(one)]
    known = variable_names()
    given = [one for one in known if "ROLLCALL" not in one and one not in unset]
    for name in sorted(environ):
        if name in known or not environ[name].strip() or name.upper().startswith(theirs):
            continue
        if meant := nearest(name.upper(), unset, cutoff=ALIKE):
            yield name, meant
            continue
        meant = nearest(name.upper(), given, cutoff=MISSPELT)
        if meant not in ("", name.upper()) and environ[name].strip() != environ[meant].strip():
            yield name, meant
