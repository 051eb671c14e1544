"""A streaming completion, as a client of the OpenAI API sees it."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_DATA = "data: "
_DONE = "[DONE]"
_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Streamed:
    """What came of a streaming request.

    Attributes:
        status: of HTTP.
        text: all that was generated.
        error: the ``error`` object of an error event, or of the body where HTTP itself failed; empty if there is none.

    """

    status: int
    text: str
    error: Mapping[str, Any]


def stream(
    url: str,
    prompt: str,
    *,
    max_tokens: int,
    kv_transfer_params: Mapping[str, Any],
    headers: Mapping[str, str],
) -> Streamed:
    """POST a greedy streaming completion to the server at *url* and read the stream to its end.

    Raises:
        OSError: the server does not answer.

    """
    body = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "kv_transfer_params": dict(kv_transfer_params),
    }
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request(
            "POST",
            "/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **headers},
        )
        response = connection.getresponse()
        lines = response.read().decode().splitlines()
    finally:
        connection.close()
    if response.status != http.client.OK:
        return Streamed(response.status, "", dict(json.loads("".join(lines))["error"]))
    chunks = [
        json.loads(line.removeprefix(_DATA)) for line in lines if line.startswith(_DATA) and _DONE not in line
    ]
    errors = [chunk["error"] for chunk in chunks if "error" in chunk]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk.get("choices", ()))
    return Streamed(response.status, text, dict(errors[0]) if errors else {})
