#!/usr/bin/env bash
# `make publish-image IMAGE=REGISTRY/NAME:TAG`: builds a flavour of the image, lists its packages in an
# SBOM and how it was built in its provenance, pushes it, signs it and attaches both. DRY_RUN=1 neither
# pushes nor signs, and takes bases without a digest.
#
# FLAVOUR: cuda. ENGINE: docker, or podman. BUILD_ARGS: more words for `ENGINE build`.
# COSIGN_KEY: a key of cosign; without it the signer's identity is asked for, or that of the CI job.
set -euo pipefail
cd "$(dirname "$0")/.."
DRY_RUN=${DRY_RUN:-0} FLAVOUR=${FLAVOUR:-cuda} ENGINE=${ENGINE:-docker}

refuse() {
  echo "publish-image: $1" >&2
  exit 64
}
[ -n "${IMAGE:-}" ] || refuse "IMAGE is missing: give IMAGE=REGISTRY/NAME:TAG"
tools=$ENGINE
if [ "$DRY_RUN" = 0 ]; then tools="$ENGINE cosign"; fi
for tool in $tools; do
  command -v "$tool" > /dev/null || refuse "$tool is not installed: ENGINE=podman is the other engine, \
and DRY_RUN=1 needs no cosign"
done
if [ "$DRY_RUN" = 0 ] && [ -n "$(git status --porcelain)" ]; then
  refuse "there are changes that no commit has: commit them, or give DRY_RUN=1"
fi
bases=$(release/bases.sh --check 2>&1) || case ${BUILD_ARGS:-} in
  *BASE_IMAGE=*) ;; # another base is given
  *) if [ "$DRY_RUN" = 0 ]; then refuse "$bases"; else echo "$bases" >&2; fi ;;
esac

format=()
case $("$ENGINE" --version) in podman*) format=(--format docker) ;; esac # OCI's has no HEALTHCHECK
# shellcheck disable=SC2206 # BUILD_ARGS has several words
command=("$ENGINE" build "${format[@]}" --build-arg FLAVOUR="$FLAVOUR" ${BUILD_ARGS:-} --tag "$IMAGE" .)
"${command[@]}"
mkdir -p dist
provenance=dist/rollcall-image-$FLAVOUR.provenance.json
python3 release/provenance.py "$IMAGE" "$(git rev-parse HEAD)" "${command[@]}" > "$provenance"
echo "$provenance"
sbom=dist/rollcall-image-$FLAVOUR.cdx.json
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
"$ENGINE" run --rm --interactive --network none --entrypoint sh "$IMAGE" < release/inventory.sh \
  | .release/bin/python release/sbom.py "$IMAGE" > "$sbom"
echo "$sbom"
if [ "$DRY_RUN" != 0 ]; then
  echo "DRY_RUN=$DRY_RUN: nothing is pushed or signed"
  exit
fi
"$ENGINE" push "$IMAGE"
pushed=$("$ENGINE" image inspect --format '{{index .RepoDigests 0}}' "$IMAGE")
key=()
if [ -n "${COSIGN_KEY:-}" ]; then key=(--key "$COSIGN_KEY"); fi
cosign sign --yes "${key[@]}" "$pushed"
cosign attest --yes "${key[@]}" --type cyclonedx --predicate "$sbom" "$pushed"
cosign attest --yes "${key[@]}" --type slsaprovenance1 --predicate "$provenance" "$pushed"
echo "$pushed"
