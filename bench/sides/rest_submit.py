"""Submit a job by Ray's REST interface in the moment in which it accepts one: ADDRESS WORD…

It has the standard library alone, so that it starts at once wherever Python is.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.05


def main(address: str, *words: str) -> None:
    body = json.dumps({"entrypoint": shlex.join(words)}).encode()
    request = urllib.request.Request(
        f"{address}/api/jobs/", body, {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
            return
        except OSError as error:  # the dashboard, or its agent that starts jobs, is not there yet
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or time.monotonic() > deadline:
                raise
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
