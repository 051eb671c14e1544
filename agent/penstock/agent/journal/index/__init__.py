"""The index of the log: by request, by kind."""

from __future__ import annotations

from penstock.agent.journal.index.disk_format import (
    KIND_NUMBERS,
    event_request_ids,
    kind_rows,
    pack_keys,
    request_ids,
    request_key,
    request_keys,
)
from penstock.agent.journal.index.requests import RequestIndex, RequestLookup

__all__ = [
    "KIND_NUMBERS",
    "RequestIndex",
    "RequestLookup",
    "event_request_ids",
    "kind_rows",
    "pack_keys",
    "request_ids",
    "request_key",
    "request_keys",
]
