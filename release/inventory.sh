# shellcheck shell=sh
# Prints what an image has, a package a line: its kind, its name, its version, separated by tabs.
# `sh` of the image reads this from standard input.
. /etc/os-release
printf 'os\t%s\t%s\n' "$ID" "$VERSION_ID"
dpkg-query --show --showformat 'deb\t${Package}\t${Version}\n'
for python in python /opt/verl/bin/python; do
  command -v "$python" > /dev/null || continue
  "$python" -c 'from importlib.metadata import distributions
for one in distributions(): print("pypi", one.name, one.version, sep="\t")'
done
