"""Clients and their router: a request is computed by a prefill pod, then by a decode pod; some leave, some prompts are long."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from demo.common.client import prefill
from demo.common.steps import PROMPT
from tests.calm.pods import DECODE, PREFILL

if TYPE_CHECKING:
    from tests.calm.pods import Pods

SENT, SERVED, LEFT, FAILED = "sent", "served", "left", "failed"
# Of twenty tokens each; a server takes two thousand.
_SHORT, _LONG = (1, 6), (60, 80)
_LONG_SHARE: Final = 0.25
_TOKENS: Final = (4, 40)
_SECONDS: Final = 120.0
_FIRST_BYTES: Final = 1


class Traffic:
    """*clients* that each send one request after the other, with a pause.

    Attributes:
        leaving: the share of the clients that close their connection while they wait.
        long: whether there are long prompts among the short ones.

    """

    def __init__(self, pods: Pods, seed: int, *, clients: int = 2, pause: float = 0.6) -> None:
        self._pods = pods
        self._random = random.Random(seed)
        self._pause = pause
        self._ending = threading.Event()
        self._counts: Counter[str] = Counter()
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]
        self.leaving = 0.0
        self.long = False

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End when the requests in flight have ended."""
        self._ending.set()
        for thread in self._threads:
            thread.join(_SECONDS)

    def take(self) -> tuple[Counter[str], list[str]]:
        """Return what became of the requests since the last time, and what those that failed were told."""
        counts, self._counts = self._counts, Counter()
        errors, self._errors = self._errors, []
        return counts, errors

    def _client(self) -> None:
        while not self._ending.wait(self._random.uniform(0, 2 * self._pause)):
            self._counts[SENT] += 1
            try:
                self._counts[self._request()] += 1
            except (OSError, ValueError, http.client.HTTPException) as error:
                self._counts[FAILED] += 1
                self._errors.append(f"{type(error).__name__}: {error}"[:300])

    def _request(self) -> str:
        times = _LONG if self.long and self._random.random() < _LONG_SHARE else _SHORT
        prompt = f"{self._random.getrandbits(64):x} {PROMPT * self._random.randint(*times)}"
        leaves = self._random.random() < self.leaving
        with self._pods.route(PREFILL) as first:
            answer = prefill(first.server.url, prompt, timeout=_SECONDS)
            if answer.status != http.client.OK:
                raise ValueError(f"{first.name} answered {answer.status}: {answer.text}")
            with self._pods.route(DECODE) as second:
                body = {
                    "prompt": prompt,
                    "max_tokens": self._random.randint(*_TOKENS) * (4 if leaves else 1),
                    "temperature": 0,
                    "ignore_eos": True,
                    "stream": True,
                    "kv_transfer_params": answer.kv_transfer_params,
                }
                return _stream(second.server.url, body, leaves=leaves)


def _stream(url: str, body: dict[str, Any], *, leaves: bool) -> str:
    """Read the stream to its end, or *leave* after its first bytes; return what became of it."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
    try:
        connection.request(
            "POST", "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if leaves and response.status == http.client.OK:
            response.read(_FIRST_BYTES)
            return LEFT
        text = response.read().decode(errors="replace")
    finally:
        connection.close()
    if response.status != http.client.OK or '"error"' in text or "[DONE]" not in text:
        raise ValueError(f"{url} answered {response.status}: {text[-200:]}")
    return SERVED
