"""A reward model behind FastAPI, one request after the other, as OpenRLHF's `serve_rm` has it."""

from __future__ import annotations

import sys
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def main() -> None:
    directory, port = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model: Any = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    app = FastAPI()

    @app.post("/get_reward")
    async def get_reward(request: Request) -> JSONResponse:
        queries = (await request.json())["query"]
        with torch.no_grad():
            batch = tokenizer(queries, return_tensors="pt", padding=True)
            rewards = model(batch["input_ids"], batch["attention_mask"]).logits[:, 0].tolist()
        return JSONResponse({"rewards": rewards, "scores": rewards, "extra_logs": {}})

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
