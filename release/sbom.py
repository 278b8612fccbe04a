"""`python release/sbom.py IMAGE < INVENTORY`: prints the SBOM of an image, in CycloneDX 1.6.

The inventory is what `release/inventory.sh` prints. The schema of CycloneDX: ECMA-424.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL


def sbom(image: str, inventory: Iterable[str]) -> str:
    """Return the SBOM as JSON. Raises ValueError if the schema does not allow it."""
    bom = Bom()
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        bom.metadata.timestamp = datetime.fromtimestamp(int(epoch), UTC)
    root = Component(name=image, type=ComponentType.CONTAINER, bom_ref="image")
    bom.metadata.component = root
    bom.metadata.tools.components.add(this_component())
    parts = [_component(*row) for row in _rows(inventory)]
    bom.components.update(parts)
    bom.register_dependency(root, parts)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"not CycloneDX 1.6: {fault}")
    return text


def _rows(inventory: Iterable[str]) -> list[tuple[PackageURL, ComponentType]]:
    """Return each package once, sorted. Raises ValueError if the inventory lacks a kind."""
    rows = [line.rstrip("\n").split("\t") for line in inventory]
    if lacking := {"os", "deb", "pypi"} - {kind for kind, *_ in rows}:
        raise ValueError(f"the inventory names no {' and no '.join(sorted(lacking))}")
    (system,) = (name for kind, name, _ in rows if kind == "os")
    kinds = {"os": ComponentType.OPERATING_SYSTEM, "deb": ComponentType.LIBRARY}
    return [
        (
            PackageURL(
                type="generic" if kind == "os" else kind,
                namespace=system if kind == "deb" else None,
                name=name,
                version=version,
            ),
            kinds.get(kind, ComponentType.LIBRARY),
        )
        for kind, name, version in sorted({(kind, name, version) for kind, name, version in rows})
    ]


def _component(url: PackageURL, kind: ComponentType) -> Component:
    return Component(
        name=url.name, version=url.version, type=kind, purl=url, bom_ref=url.to_string()
    )


if __name__ == "__main__":
    print(sbom(sys.argv[1], sys.stdin))
