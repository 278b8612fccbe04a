"""The policy's words alone: without the prompt, without a tokenizer's special tokens."""

from __future__ import annotations

import re
from dataclasses import replace

from env.types import RewardRequest

# OpenRLHF decodes queries with special tokens: <eos>, </s>, <|im_end|>, <|endoftext|>, [PAD].
SPECIAL = r"(?:</?\|?[A-Za-z_]+\|?>|\[(?:PAD|EOS|SEP)\])"
LEADING = re.compile(rf"^(?:\s*{SPECIAL})+")
TRAILING = re.compile(rf"(?:{SPECIAL}\s*)+$")


def completion_of(request: RewardRequest) -> str:
    """Return the request's response without special tokens."""
    if not request.query.startswith(request.prompt):
        request = replace(request, query=LEADING.sub("", request.query))  # padding on the left
    return TRAILING.sub("", request.response)
