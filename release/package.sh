#!/usr/bin/env bash
# `make publish-package`: builds the sdist and the wheel, lists the packages that they are tested with
# in an SBOM, signs all three, and uploads. DRY_RUN=1 neither signs nor uploads.
#
# The signer's identity is that of the CI job, or asked for in a browser. uv reads UV_PUBLISH_TOKEN
# and UV_PUBLISH_URL; without them it uploads to the public index as a trusted publisher.
set -euo pipefail
cd "$(dirname "$0")/.."
DRY_RUN=${DRY_RUN:-0}
export DIST=${DIST:-dist}
in_ci=${ACTIONS_ID_TOKEN_REQUEST_TOKEN:-}

if [ "$DRY_RUN" = 0 ]; then
  if [ -n "$(git status --porcelain)" ]; then
    echo "publish-package: there are changes that no commit has: commit them, or give DRY_RUN=1" >&2
    exit 64
  fi
  if [ -z "${UV_PUBLISH_TOKEN:-}$in_ci" ]; then
    echo "publish-package: no credential: set UV_PUBLISH_TOKEN to a token of the index, run it as a" \
      "trusted publisher in CI, or give DRY_RUN=1" >&2
    exit 77
  fi
fi
release/dist.sh
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
sdist=$(echo "$DIST"/rollcall_rlhf-*.tar.gz)
sbom=${sdist%.tar.gz}.cdx.json
cat requirements/torch.lock requirements/cpu.lock | .release/bin/cyclonedx-py requirements \
  --pyproject pyproject.toml --mc-type library --output-reproducible --validate -o "$sbom" -
echo "$sbom"
if [ "$DRY_RUN" != 0 ]; then
  echo "DRY_RUN=$DRY_RUN: nothing is signed or uploaded"
  exit
fi
.release/bin/python -m sigstore sign --overwrite "$sdist" "$DIST"/rollcall_rlhf-*.whl "$sbom"
# An index takes attestations of a trusted publisher only. uv uploads those beside the files.
if [ -n "$in_ci" ]; then .release/bin/pypi-attestations sign "$sdist" "$DIST"/rollcall_rlhf-*.whl; fi
.venv/bin/uv publish "$sdist" "$DIST"/rollcall_rlhf-*.whl
