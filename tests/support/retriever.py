"""Searches as an episode makes them."""

from __future__ import annotations

import asyncio
from typing import Any

from env.retrieval.client import Retriever, SearchResult


def search(url: str, *queries: str, path: str = "/retrieve", **settings: Any) -> list[SearchResult]:
    async def ask() -> list[SearchResult]:
        async with Retriever(f"{url}{path}", **settings) as retriever:
            return await retriever.search(queries)

    return asyncio.run(ask())
