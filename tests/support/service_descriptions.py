"""OpenAPI descriptions of the protocols of other projects that the servers of `env` speak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
TEXTS = {"type": "array", "items": {"type": "string"}}
NUMBERS = {"type": "array", "items": {"type": ["number", "null"]}}
REASONS = {"type": "array", "items": {"type": ["string", "null"]}}


def json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": "", "content": {"application/json": {"schema": schema}}}


def service(path: str, asked: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a server with one path, and its health."""
    refusals = {str(status): json(ERROR) for status in (400, 401, 413, 429)}
    post = {
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": {"200": json(answer), **refusals},
    }
    ready = {"type": "object", "required": ["status"]}
    health = {"security": [], "responses": {"200": json(ready)}}
    return {
        "openapi": "3.1.0",
        "info": {"title": path, "version": "1"},
        "paths": {path: {"post": post}, "/health": {"get": health}},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}],
    }


OF: Mapping[str, dict[str, Any]] = {
    "reward": service(
        "/get_reward",
        {
            "type": "object",
            "required": ["query", "prompts"],
            "properties": {"query": TEXTS, "prompts": TEXTS, "labels": {"type": ["array", "null"]}},
        },
        {
            "type": "object",
            "required": ["rewards", "scores", "extra_logs", "errors"],
            "properties": {
                "rewards": NUMBERS,
                "scores": NUMBERS,
                "errors": REASONS,
                "extra_logs": {"type": "object", "additionalProperties": NUMBERS},
            },
        },
    ),
    "retrieval": service(
        "/retrieve",
        {
            "type": "object",
            "required": ["queries"],
            "properties": {
                "queries": TEXTS,
                "topk": {"type": ["integer", "null"], "minimum": 1, "maximum": 100},
                "return_scores": {"type": "boolean"},
            },
        },
        {
            "type": "object",
            "required": ["result"],
            "properties": {
                "result": {"type": "array", "items": {"type": "array"}},
                "errors": REASONS,
            },
        },
    ),
}
