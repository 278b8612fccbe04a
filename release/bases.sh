#!/usr/bin/env bash
# `make bases`: writes into the Dockerfile which digests the tags of its base images have now. Commit the
# change: builds then take the same bases until the next time. --check says which of them lack a digest.
#
# ENGINE: docker (its buildx asks the registry), or podman (skopeo does).
set -euo pipefail
ENGINE=${ENGINE:-docker} DOCKERFILE=${DOCKERFILE:-$(dirname "$0")/../Dockerfile}

listed() { # REST: the names of the base images that REST, a pattern, follows
  sed --quiet --regexp-extended "s/^FROM \\\$\{[A-Z_]+:-([^}@]+)$1\} .*/\1/p" "$DOCKERFILE" | sort --unique
}

if [ "${1:-}" = --check ]; then
  lacking=$(listed '' | paste --serial --delimiters ' ')
  if [ -z "$lacking" ]; then exit; fi
  echo "bases without a digest: $lacking. Run \`make bases\`, and commit the Dockerfile" >&2
  exit 1
fi
for name in $(listed '(@sha256:[0-9a-f]{64})?'); do
  case $ENGINE in
    podman) digest=$(skopeo inspect --no-tags --format '{{.Digest}}' "docker://$name") ;;
    *) digest=$("$ENGINE" buildx imagetools inspect "$name" --format '{{.Manifest.Digest}}') ;;
  esac
  [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || {
    echo "$name: no digest, but: $digest" >&2
    exit 1
  }
  sed --in-place --regexp-extended "s|(:-${name//./\\.})(@sha256:[0-9a-f]{64})?\}|\1@$digest}|" "$DOCKERFILE"
  echo "$name@$digest"
done
