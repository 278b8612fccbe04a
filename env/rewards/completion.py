"""The policy's words alone: without the prompt, without a tokenizer's special tokens."""

from __future__ import annotations

import re
from dataclasses import replace

from env.types import RewardRequest

# OpenRLHF decodes queries with special tokens: <eos>, </s>, <|im_end|>, <|endoftext|>, [PAD]. Tags
# such as </answer> are words of the policy.
NAMES = r"s|pad|eos|bos|unk|sep|cls|mask|(?:start|end)_of_turn|end_of_utterance"
SPECIAL = rf"(?:</?(?:{NAMES})>|<\|[^\s<>|]{{1,40}}\|>|<｜[^\s<>｜]{{1,40}}｜>|\[(?:PAD|EOS|SEP)\])"
LEADING = re.compile(rf"^(?:\s*{SPECIAL})+", re.IGNORECASE)
TRAILING = re.compile(rf"(?:{SPECIAL}\s*)+$", re.IGNORECASE)


def completion_of(request: RewardRequest) -> str:
    """Return the request's response without special tokens."""
    if not request.query.startswith(request.prompt):
        request = replace(request, query=LEADING.sub("", request.query))  # padding on the left
    return TRAILING.sub("", request.response)
