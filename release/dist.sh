#!/usr/bin/env bash
# `make dist`: the sdist and the wheel of the tracked files, in DIST (default: dist). The same commit gives the same
# bytes on each machine: times are the commit's, and no file keeps its owner or its place in a folder.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
DIST=${DIST:-dist}
uv=$root/.venv/bin/uv
python=$root/.release/bin/python
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
made=$(mktemp --directory)
trap 'rm -rf "$made"' EXIT

pack() { # FOLDER: the files of the folder $made/FOLDER as a tar on standard output
  tar --create --directory "$made" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
    --numeric-owner --mode=u=rwX,go=rX --pax-option=delete=atime,delete=ctime "$1"
}

build() { # KIND SOURCE
  "$uv" build --quiet --offline --no-build-isolation --python "$python" "--$1" --out-dir "$made" "$2"
}

mkdir "$made/source"
git ls-files -z | tar --create --null --verbatim-files-from --files-from=- --ignore-failed-read \
  | tar --extract --directory "$made/source"
build sdist "$made/source"
(cd "$made" && tar --extract --file rollcall_rlhf-*.tar.gz)
sdist=$(cd "$made" && echo rollcall_rlhf-*.tar.gz)
name=${sdist%.tar.gz}
pack "$name" | gzip --no-name --best > "$made/$sdist"
chmod --recursive u=rwX,go=rX "$made/$name"
build wheel "$made/$name"
mkdir -p "$DIST"
rm -f "$DIST"/rollcall_rlhf-*
mv "$made/$sdist" "$made"/rollcall_rlhf-*.whl "$DIST"
ls "$DIST"
