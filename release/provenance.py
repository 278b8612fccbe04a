"""`python release/provenance.py IMAGE COMMIT WORD…`: prints how an image was built, in SLSA 1.0.

The words are the command that built it. Its bases are those of the Dockerfile, with their digests
if it has them. The format: slsa.dev/spec/v1.0/provenance. cosign says which image it is about.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DOCKERFILE = Path(__file__).resolve().parents[1] / "Dockerfile"
BASE = re.compile(r"^FROM \$\{([A-Z_]+):-([^}@]+)(?:@sha256:([0-9a-f]{64}))?\} ", re.MULTILINE)


def provenance(image: str, commit: str, command: Sequence[str]) -> dict[str, Any]:
    pairs = [word.split("=", 1) for word in command if re.match(r"[A-Z_]+=", word)]
    arguments = dict(pairs)
    return {
        "buildDefinition": {
            "buildType": "https://docs.docker.com/build/",
            "externalParameters": {
                "image": image,
                "command": list(command),
                "arguments": arguments,
            },
            "resolvedDependencies": [
                {"name": "source", "digest": {"gitCommit": commit}},
                *_bases(arguments),
            ],
        },
        "runDetails": {"builder": {"id": "release/image.sh"}},
    }


def _bases(arguments: dict[str, str]) -> Iterator[dict[str, Any]]:
    given = [
        (name, *arguments[name].partition("@sha256:")[::2]) for name in _names() & arguments.keys()
    ]
    of_the_file = [
        found for found in BASE.findall(DOCKERFILE.read_text()) if found[0] not in arguments
    ]
    for _, name, digest in sorted({*given, *of_the_file}):
        yield {"name": "base", "uri": name, **({"digest": {"sha256": digest}} if digest else {})}


def _names() -> set[str]:
    return {name for name, *_ in BASE.findall(DOCKERFILE.read_text())}


if __name__ == "__main__":
    print(json.dumps(provenance(sys.argv[1], sys.argv[2], sys.argv[3:]), indent=2))
