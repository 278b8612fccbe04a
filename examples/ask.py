"""Ask a model that has learned to search, and see what it searches and finds.

python examples/ask.py runs/search/hf "Where does bibahe live?"

`ROLLCALL_RETRIEVER_URL` names the retrieval server; docs/tutorial-search.md has the rest.
"""

from __future__ import annotations

import asyncio
import os
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from rollcall import Reply, Retriever, Search

MAX_TURNS = 3


async def ask(directory: str, question: str) -> str:
    """Return the episode's text: the question, the model's replies, and what the server found."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    search = Search(Retriever(os.environ["ROLLCALL_RETRIEVER_URL"], topk=1))
    text, done = question, False
    for number in range(MAX_TURNS):
        prompt = tokenizer(text, return_tensors="pt")
        made = model.generate(
            **prompt,
            max_new_tokens=12,
            do_sample=False,
            stop_strings=list(search.stops),
            tokenizer=tokenizer,
        )
        reply = tokenizer.decode(made[0, prompt["input_ids"].shape[1] :])
        reply = reply.removesuffix(tokenizer.eos_token)
        turn = await search.step(Reply(reply, last=number == MAX_TURNS - 1))
        text, done = text + reply + turn.text, turn.done
        if done:
            break
    await search.close()
    return text


if __name__ == "__main__":
    print(asyncio.run(ask(*sys.argv[1:3])))
