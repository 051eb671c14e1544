"""Closed-loop traffic with streamed answers, as chat clients send it, and its client-side latencies.

Prompts are token ids, new ones each time, so that no prefix is cached; the same ones for all who are compared in a round.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TIMEOUT: Final = 120.0
_TOKENS: Final = range(3, 500)
_TOGETHER: Final = 100e-6
"""Parts read within this many seconds count as one: a delayed client reads several at once."""
_END: Final = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one turn.

    Attributes:
        clients: how many requests are there at a time.
        requests: how many in all.
        prompt, output: tokens of each.
        varies: each has between a half and one and a half of that output, by chance: else those that begin together end together,
            and what the engine does changes in waves.

    """

    name: str
    clients: int
    requests: int
    prompt: int
    output: int
    varies: bool = False


@dataclass(slots=True)
class Latencies:
    """The latencies that the clients of a turn measured, in seconds.

    Attributes:
        gaps: from one part of an answer to the next; a part is what was read together.
        first: from a request to the first part of its answer.
        took: the whole turn.

    """

    gaps: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    took: float = 0.0

    def gap(self, percent: int) -> float:
        """Return a percentile of the gaps, in milliseconds; where all came together, the longest time that counts as that."""
        gaps = self.gaps if len(self.gaps) > 1 else [_TOGETHER, _TOGETHER]
        return statistics.quantiles(gaps, n=100, method="inclusive")[percent - 1] * 1e3


@dataclass(frozen=True, slots=True)
class Route:
    """The target of requests: *url*, after the prefill server if there is one."""

    url: str
    prefill: str = ""


def drive(route: Route, load: Load, seed: int) -> Latencies:
    """Send a load and wait for all of its answers.

    Raises:
        RuntimeError: a request was not served, or not completely.

    """
    return asyncio.run(_drive(route, load, itertools.islice(_asked(load, seed), load.requests)))


async def _drive(route: Route, load: Load, asked: Iterator[tuple[list[int], int]]) -> Latencies:
    seen = Latencies()
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, raise_for_status=_must_be_ok
    ) as session:

        async def client() -> None:
            for prompt, output in asked:
                await _ask(session, route, prompt, output, seen)

        began = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(load.clients):
                    tasks.create_task(client())
        except BaseExceptionGroup as group:
            # The first is the cause; the others were cancelled for it, or met the same.
            raise group.exceptions[0] from None
        seen.took = time.perf_counter() - began
    return seen


def _asked(load: Load, seed: int) -> Iterator[tuple[list[int], int]]:
    """Yield prompts, each with its number of tokens to generate."""
    chance = random.Random(seed)
    least, most = (load.output + 1) // 2, load.output + load.output // 2
    while True:
        prompt = chance.choices(_TOKENS, k=load.prompt)
        yield prompt, chance.randint(least, most) if load.varies else load.output


async def _ask(
    session: aiohttp.ClientSession, route: Route, prompt: list[int], tokens: int, seen: Latencies
) -> None:
    began = time.perf_counter()
    body: dict[str, Any] = {"prompt": prompt, "temperature": 0, "ignore_eos": True}
    if route.prefill:
        async with session.post(
            f"{route.prefill}/v1/completions",
            json={**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}},
        ) as answer:
            body["kv_transfer_params"] = (await answer.json())["kv_transfer_params"]
    body |= {"max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
    last, usage = 0.0, b""
    async with session.post(f"{route.url}/v1/completions", json=body) as answer:
        async for line in answer.content:
            if not line.startswith(b"data:"):
                continue
            now = time.perf_counter()
            if line.strip().endswith(_END):
                break
            if not last:
                seen.first.append(now - began)
            elif now - last > _TOGETHER:
                seen.gaps.append(now - last)
            last, usage = now, line
    done = json.loads(usage.removeprefix(b"data:"))["usage"]["completion_tokens"]
    if done != tokens:
        raise RuntimeError(f"{route.url} answered with {done} tokens instead of {tokens}.")


async def _must_be_ok(answer: aiohttp.ClientResponse) -> None:
    if answer.status != HTTPStatus.OK:
        raise RuntimeError(
            f"{answer.url} answered {answer.status} instead of 200: {(await answer.text())[:500]}"
        )


def run_under_load(route: Route, load: Load, work: Callable[[], None]) -> None:
    """Call *work* in a thread while the load's clients ask one request after the other; returns when both have ended.

    Raises:
        RuntimeError: a request was not served, or not completely.

    """

    async def both() -> None:
        done = asyncio.create_task(asyncio.to_thread(work))
        await _drive(route, load, itertools.takewhile(lambda _: not done.done(), _asked(load, seed=-1)))
        await done

    asyncio.run(both())
