"""Loads that a deadline gave up and that go on, on an engine with a small cache, and other requests that need its blocks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.proto.v1 import common_pb2 as c

from demo.common.client import Answer, fetch, post_json
from demo.common.metrics import Metrics
from demo.common.steps import PROMPT, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.proto.v1.events_pb2 import BlocksPinned

    from demo.servers import Server
    from tests.support.engine.bench import AgentBench

_BLOCK: Final = 32
_BLOCKS: Final = 64
SMALL_CACHE: Final = (
    *("--block-size", str(_BLOCK), "--max-model-len", "1024"),
    # One more is vLLM's null block.
    *("--num-gpu-blocks-override", str(_BLOCKS + 1)),
)
"""Arguments of an engine whose blocks a few requests fill."""

DEADLINE: Final = "2s"
_DEADLINE_TOLD: Final = "2 s"


def long_prompt(name: str) -> str:
    """Return a prompt of about a quarter of the blocks."""
    return f"{name} {PROMPT * 24}"


class Others:
    """Requests that together need more blocks than there are beside a load of :func:`long_prompt`."""

    def __init__(self, server: Server, *, prompts: Sequence[str]) -> None:
        self._server = server
        self._prompts = prompts
        self._turns = 0

    def ask(self, tokens: int = 48, server: Server | None = None) -> list[str]:
        """Send all at once, to be computed anew: no prefix of an earlier turn fits. Return the texts."""
        self._turns += 1
        url, salt = (server or self._server).url, f"turn-{self._turns}"

        def text(prompt: str) -> str:
            body = {
                "prompt": prompt,
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_salt": salt,
            }
            return post_json(f"{url}/v1/completions", body, timeout=240.0).completion

        with ThreadPoolExecutor(len(self._prompts)) as pool:
            return list(pool.map(text, self._prompts))

    def check(self, expected: Sequence[str], let_go: Callable[[], None]) -> None:
        """See that they are served as *expected* beside a load that was given up, and while it comes late; *let_go* lets it."""
        assert self.ask() == expected
        with ThreadPoolExecutor(1) as sender:
            turns = [sender.submit(self.ask)]

            def filled() -> bool:
                if usage(self._server) > 0.8:
                    return True
                if turns[-1].done():
                    # It was over between two looks.
                    turns.append(sender.submit(self.ask))
                return False

            until(filled, "The others do not fill the cache")
            let_go()
            assert all(turn.result() == expected for turn in turns)


def many(length: int, number: int) -> list[str]:
    """Return *number* prompts of *length* characters, about four for a token."""
    return [f"{each} {PROMPT * (1 + length // len(PROMPT))}"[:length] for each in range(number)]


def usage(server: Server) -> float:
    """Return which part of the blocks is in use."""
    return Metrics.parse(fetch(f"{server.url}/metrics").text).value("vllm:kv_cache_usage_perc")


def check_given_up(
    bench: AgentBench, name: str, answer: Answer, wait: str = "maxTransferWait"
) -> BlocksPinned:
    """See that a request got its answer at the deadline, and that its blocks stay."""
    assert answer.status == 503, answer.text
    message = answer.body["error"]["message"]
    assert all(part in message for part in ("mode timeout", f"{wait} {_DEADLINE_TOLD}", "can be retried")), (
        message
    )
    bench.event("request_closed", name)
    outcome = bench.event("load_outcome", name).load_outcome
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_FAILED, c.DECIDED_BY_DEADLINE)
    endings = [event.deferral_end.ending for event in bench.events("deferral_end", name)]
    assert endings.count(c.DEFERRAL_ENDING_TIMEOUT) == 1
    (failure,) = [event.transfer_failure for event in bench.events("transfer_failure", name)]
    assert failure.mode == c.FAILURE_MODE_TIMEOUT
    pin: BlocksPinned = bench.event("blocks_pinned", name).blocks_pinned
    assert (pin.peer.address, pin.released) == (failure.peer.address, False)
    assert pin.blocks > 0
    bench.wait_value(pin.blocks, "penstock_held_blocks", holder="pinned", peer=pin.peer.address)
    return pin


def check_released(bench: AgentBench, server: Server, name: str) -> None:
    """See that the blocks are free once the load has ended, and that its end is no second failure."""
    released = bench.event("blocks_pinned", name, released=True).blocks_pinned
    bench.wait_value(0, "penstock_held_blocks", holder="pinned", peer=released.peer.address)
    until(lambda: usage(server) == 0, "Blocks are left")
    assert len(bench.events("transfer_failure", name)) == 1
    assert len(bench.events("load_outcome", name)) == 1


def check_put_off(bench: AgentBench, name: str, answer: Answer) -> None:
    """See that a request whose look-up was put off got its answer at the deadline, and that nothing is held."""
    assert answer.status == 503, answer.text
    assert f"mode timeout, deferral.maxStartWait {_DEADLINE_TOLD}" in answer.body["error"]["message"]
    bench.event("request_closed", name)
    (end,) = [event.deferral_end for event in bench.events("deferral_end", name)]
    assert (end.reason, end.ending) == (c.DEFERRAL_REASON_KV_LOOKUP, c.DEFERRAL_ENDING_TIMEOUT)
    (event,) = bench.events("load_outcome", name)
    assert event.load_outcome.decided_by == c.DECIDED_BY_DEADLINE
    assert not bench.events("blocks_pinned", name)


@contextmanager
def copies_stand_still(gate: Path) -> Iterator[Callable[[], None]]:
    """Have the threads that copy the loads of a ``FileWorker`` stand still in the kernel, until the end or the call."""
    os.mkfifo(gate)

    def let_go() -> None:
        if gate.exists():
            # Nobody comes late: who looks now finds no gate. Opened for both ends, a pipe waits for none.
            held = gate.rename(f"{gate}-held")
            os.close(os.open(held, os.O_RDWR))
            held.unlink()

    try:
        yield let_go
    finally:
        let_go()
