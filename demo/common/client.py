"""An HTTP client that acts as a router: one request to prefill or the encoder, then to decode.

``timeout`` is in seconds; without one a call waits for its answer with :class:`~demo.common.progress.Patience`.
"""

from __future__ import annotations

import http.client
import json
import select
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from demo.common.progress import LIMIT_SECONDS, wait_for_others

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from demo.common.images import Picture

_LOOK_SECONDS = 1.0
# Makes a prefill server keep the KV blocks for a reader.
_REMOTE_DECODE: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer of a vLLM server.

    Attributes:
        body: the parsed JSON, an empty dict if it was not JSON.
        retry_after: the header of that name; empty if there is none.

    """

    status: int
    body: dict[str, Any]
    text: str = field(repr=False)
    retry_after: str = ""

    @property
    def completion(self) -> str:
        """The generated text.

        Raises:
            ValueError: the server did not generate any; the text holds its answer.

        """
        if self.status != http.client.OK:
            raise ValueError(f"The server answered {self.status} instead of 200: {self.text[:500]}")
        return str(self.body["choices"][0]["text"])

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids of the generated tokens of a :func:`chat`.

        Raises:
            ValueError: the server did not generate any; the text holds its answer.

        """
        if self.status != http.client.OK:
            raise ValueError(f"The server answered {self.status} instead of 200: {self.text[:500]}")
        return tuple(self.body["choices"][0]["token_ids"])

    @property
    def kv_transfer_params(self) -> dict[str, Any]:
        """The location of a prefill's KV blocks, for the decode server."""
        return dict(self.body["kv_transfer_params"])


def fetch(url: str, *, timeout: float | None = None, headers: Mapping[str, str] | None = None) -> Answer:
    """GET *url*.

    Raises:
        OSError: the server does not answer.

    """
    return _send("GET", url, None, headers or {}, timeout)


def post(url: str, *, timeout: float | None = None) -> Answer:
    """POST an empty body to *url*.

    Raises:
        OSError: the server does not answer.

    """
    return _send("POST", url, None, {}, timeout)


def complete(
    url: str,
    prompt: str,
    *,
    max_tokens: int = 16,
    kv_transfer_params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Answer:
    """POST a greedy completion to the server at *url*; return its answer of any status.

    Raises:
        OSError: the server does not answer, or not in time.

    """
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    if kv_transfer_params is not None:
        body["kv_transfer_params"] = dict(kv_transfer_params)
    return _send("POST", f"{url}/v1/completions", json.dumps(body).encode(), headers or {}, timeout)


def chat(
    url: str,
    parts: Sequence[str | Picture],
    *,
    max_tokens: int = 16,
    ec_transfer_params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Answer:
    """POST a greedy chat request of texts and pictures, in their order, to the server at *url*.

    An encoder takes the same request and answers when it has encoded the pictures.

    Raises:
        OSError: the server does not answer, or not in time.

    """
    body = chat_body(parts, max_tokens)
    if ec_transfer_params is not None:
        body["ec_transfer_params"] = dict(ec_transfer_params)
    return _send("POST", f"{url}/v1/chat/completions", json.dumps(body).encode(), headers or {}, timeout)


def chat_body(parts: Sequence[str | Picture], max_tokens: int) -> dict[str, Any]:
    """Return a greedy chat request of texts and pictures, in their order."""
    return {
        "messages": [{"role": "user", "content": [_part(part) for part in parts]}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


def post_json(
    url: str,
    body: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Answer:
    """POST *body* to *url*.

    Raises:
        OSError: the server does not answer.

    """
    return _send("POST", url, json.dumps(body).encode(), headers or {}, timeout)


def _part(part: str | Picture) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    named = {"uuid": part.alias} if part.alias else {}
    return {"type": "image_url", "image_url": {"url": part.uri}, **named}


def prefill(
    url: str, prompt: str, *, headers: Mapping[str, str] | None = None, timeout: float | None = None
) -> Answer:
    """Compute the prompt on a prefill server, which keeps the blocks for a reader."""
    return complete(
        url, prompt, max_tokens=1, kv_transfer_params=_REMOTE_DECODE, headers=headers, timeout=timeout
    )


def prefill_decode(
    prefill_url: str,
    decode_url: str,
    prompt: str,
    *,
    max_tokens: int = 16,
    redirect: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> tuple[Answer, Answer]:
    """Send one request through both servers; return the answers of prefill and decode.

    Args:
        redirect: replaces fields of the prefill's ``kv_transfer_params`` on their way to decode
            (another ``remote_port`` makes the handshake fail).

    Raises:
        ValueError: the prefill server did not answer 200.

    """
    first = prefill(prefill_url, prompt, headers=headers, timeout=timeout)
    if first.status != http.client.OK:
        raise ValueError(f"The prefill server answered {first.status} instead of 200: {first.text[:500]}")
    params = {**first.kv_transfer_params, **(redirect or {})}
    second = complete(
        decode_url,
        prompt,
        max_tokens=max_tokens,
        kv_transfer_params=params,
        headers=headers,
        timeout=timeout,
    )
    return first, second


def _send(
    method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout: float | None
) -> Answer:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=LIMIT_SECONDS if timeout is None else timeout
    )
    try:
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        if timeout is None:
            _wait_for_answer(connection, f"{method} {url}")
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise ConnectionError(f"{method} {url}: {type(error).__name__}: {error}") from error
    finally:
        connection.close()
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = {}
    retry_after = response.headers.get("Retry-After", "")
    return Answer(response.status, parsed if isinstance(parsed, dict) else {}, text, retry_after)


def _wait_for_answer(connection: http.client.HTTPConnection, what: str) -> None:
    wait = wait_for_others()
    while not select.select([connection.sock], [], [], _LOOK_SECONDS)[0]:
        if over := wait.over(f"{what}: no answer yet; waiting"):
            raise TimeoutError(f"{what}: no answer after {over}.")
