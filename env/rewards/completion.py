"""The policy's words alone: without the prompt, without a tokenizer's special tokens."""

from __future__ import annotations

import re

from env.types import RewardRequest

# OpenRLHF decodes queries with special tokens: <eos>, </s>, <|im_end|>, <|endoftext|>, [PAD].
SPECIAL = r"(?:</?\|?[A-Za-z_]+\|?>|\[(?:PAD|EOS|SEP)\])"
LEADING = re.compile(rf"^(?:\s*{SPECIAL})+")
TRAILING = re.compile(rf"(?:{SPECIAL}\s*)+$")


def completion_of(request: RewardRequest) -> str:
    query = request.query
    if not query.startswith(request.prompt):
        query = LEADING.sub("", query)  # padding on the left
    response = query[len(request.prompt) :] if query.startswith(request.prompt) else query
    return TRAILING.sub("", response)
