#!/bin/sh
# The images have this file on PATH, before Ray's own `ray`. It runs that one, with the directory and
# the token of the node in this container. If the file with the token is not this user's, no such node runs here.
token=/tmp/rollcall-token
given=$RAY_AUTH_MODE$RAY_AUTH_TOKEN$RAY_AUTH_TOKEN_PATH
if [ -z "$given" ] && [ -r "$token" ] && [ -O "$token" ]; then
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$token"
fi
# As Settings.ray_home says it.
home=${ROLLCALL_RAY_TEMP_DIR:-${RAY_TMPDIR:-${TMPDIR:-/tmp}}/rollcall-$(id -u)}
if [ -O "$home" ]; then
  export RAY_TMPDIR="$home"
  # As entrypoint.run.tls.files says it.
  if [ -r "$home/tls/key.pem" ]; then
    export RAY_USE_TLS=1 RAY_TLS_SERVER_CERT="$home/tls/cert.pem" \
      RAY_TLS_SERVER_KEY="$home/tls/key.pem" RAY_TLS_CA_CERT="$home/tls/ca.pem"
  fi
fi
exec "$(dirname "$(command -v python)")/ray" "$@"
