"""The interface in OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

_AS_OF = ("as_of", "id of a batch, or an ISO 8601 time for the newest batch that is not after it")
_NAMESPACE = ("namespace", "the namespace beside the key: JSON or text")
_ENTRY = ("entry", "the map key, or the other key columns of a table: JSON or text")

_SHARE = ("share", "true for the answer from the key groups of this server alone")

_PAGE = (
    ("limit", "maximal number of entries"),
    ("after", "next of an earlier answer: resumes with the entries after it"),
)


def _operation(summary: str, path: tuple[str, ...] = (), query: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in path
    ]
    parameters += [
        {"name": name, "in": "query", "description": about, "schema": {"type": "string"}} for name, about in query
    ]
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "the answer", "content": {"application/json": {"schema": {"type": "object"}}}},
            "default": {
                "description": "an error: 400 an invalid request, 401 and 403 the token, 404 no such table, 408 a body "
                "that does not arrive, 410 history that is no longer kept, 413 a body or an answer that is too large, "
                "429 too many queries, 503 too many requests, no batch, or key groups without a server",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }


_SQL = _operation("Run a SELECT over the tables, all as of one batch")
_SQL["requestBody"] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["query"],
                "additionalProperties": False,
                "properties": {
                    "query": {"type": "string"},
                    "parameters": {"type": ["array", "object", "null"]},
                    "as_of": {"type": ["integer", "string", "null"]},
                },
            }
        }
    },
}
_CHANGES = _operation(
    "Follow a table: server-sent events, resumed after an id (Last-Event-ID)",
    ("table",),
    (
        ("key", "only this key"),
        ("prefix", "only keys that begin with this"),
        ("after", "now, beginning, or the id of an event"),
        _SHARE,
    ),
)
_PUSH = _operation(
    "Follow a table by SELECT … EMIT CHANGES: server-sent events, resumed after an id (Last-Event-ID)",
    (),
    (
        ("query", "SELECT … FROM table [WHERE …] EMIT CHANGES [LIMIT n]"),
        ("parameters", "JSON: a list of values for ?, or an object for $name"),
        ("after", "now, beginning, or the id of an event"),
        ("check", "true to check the query, and get its table and columns"),
    ),
)
_BATCHES = _operation("Follow the job: server-sent events, one per batch, with the content of /status")
for _events in (_CHANGES, _PUSH, _BATCHES):
    _events["responses"]["200"]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}

OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "keyed state tables", "version": "1"},
    "security": [{}, {"token": []}],
    "components": {
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        "schemas": {
            "Error": {
                "type": "object",
                "properties": {
                    "error": {
                        "type": "object",
                        "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
                    }
                },
            }
        },
    },
    "paths": {
        "/health": {"get": _operation("Status of following, and the error that ended it")},
        "/ready": {
            "get": _operation(
                "Freshness of answers",
                (),
                (("within", "maximal seconds since the last successful poll of the changelogs"),),
            )
        },
        "/metrics": {"get": _operation("Counters, in Prometheus' text format")},
        "/openapi.json": {"get": _operation("This description")},
        "/status": {"get": _operation("The newest batch, the job's own status, and the peers", (), (_SHARE,))},
        "/batches": {"get": _BATCHES},
        "/tables": {"get": _operation("Names, kinds and types of the tables", (), (_SHARE,))},
        "/tables/{table}": {
            "get": _operation(
                "Entries of a table in the order of their keys",
                ("table",),
                (
                    ("key", "only this key"),
                    ("windows", "windows that start from ... to before ...: FROM/TO, milliseconds or ISO 8601 times"),
                    ("prefix", "prefix of the keys"),
                    ("from", "the least key"),
                    ("to", "the key before which the range ends"),
                    ("order", "asc or desc"),
                    ("limit", "maximal number of entries"),
                    ("after", "next of an earlier answer: resumes after it, in the same batch"),
                    _AS_OF,
                    _SHARE,
                ),
            )
        },
        "/tables/{table}/arrow": {
            "get": _operation(
                "The rows of key groups as an Arrow stream, for SQL on another server",
                ("table",),
                (("groups", "numbers of key groups"), ("has_key", "true to repeat the key as `key`"), _AS_OF, _SHARE),
            )
        },
        "/tables/{table}/changes": {"get": _CHANGES},
        "/tables/{table}/last-changes": {
            "get": _operation(
                "The last changes of a table, the newest first, and the oldest batch of as_of",
                ("table",),
                (("limit", "maximal number of changes"), _AS_OF, _SHARE),
            )
        },
        "/tables/{table}/keys/{key}": {
            "get": _operation(
                "The entries of a key: found, and value; a page of lists and maps",
                ("table", "key"),
                (_ENTRY, _NAMESPACE, *_PAGE, _AS_OF, _SHARE),
            )
        },
        "/tables/{table}/history/{key}": {
            "get": _operation(
                "Versions of an entry, the newest first", ("table", "key"), (_ENTRY, _NAMESPACE, *_PAGE, _SHARE)
            )
        },
        "/timers": {
            "get": _operation(
                "Pending timers",
                (),
                (
                    ("key", "only timers of this key"),
                    ("operator", "only timers of this operator"),
                    ("limit", "maximal number of timers"),
                    _AS_OF,
                    _SHARE,
                ),
            )
        },
        "/sql": {"post": _SQL},
        "/sql/changes": {"get": _PUSH},
        "/session": {
            "post": _operation('Log a browser in: {"token": ...} gives a cookie'),
            "delete": _operation("Log a browser out"),
        },
    },
}
