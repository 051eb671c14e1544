"""A worker with a memory, under a real scheduler: its tokens are right only if every block it attends to is.

The "KV" of a token is a fingerprint of the token and of all the KV before it, read from the memory by the block table. So a
block that was not loaded, was reused too early or is found again in the prefix cache shows in the output, as it would with a
real model and greedy decoding.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

from tests.support.engine.schedulers import BLOCK
from tests.support.engine.versions import TELLS_FAILED_RECEIVES, client_text

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.kv.fake_connector import Load

GARBAGE = 0xBAD


def fingerprint(before: Sequence[int], token: int) -> int:
    """Return the KV of a token behind the KV *before* it."""
    return hash((*before, token))


def sample(kv: Sequence[int]) -> int:
    """Return the next token."""
    return 2 + hash(tuple(kv)) % 400


def contents(tokens: Sequence[int]) -> list[int]:
    """Return the right KV of *tokens*."""
    kv: list[int] = []
    for token in tokens:
        kv.append(fingerprint(kv, token))
    return kv


def expected(prompt: Sequence[int], count: int) -> list[int]:
    """Return the output of a request to which nothing happens."""
    kv, tokens = contents(prompt), []
    for _ in range(count):
        tokens.append(sample(kv))
        kv.append(fingerprint(kv, tokens[-1]))
    return tokens


class ToyEngine:
    """A real scheduler and a worker that remembers what vLLM's own runner does: tokens and block tables by request."""

    def __init__(
        self,
        scheduler: Any,
        *,
        ahead: bool,
        fails: Callable[[str, int], bool] = lambda _request, _block: False,
        by_blocks: bool = True,
        reach: Sequence[int | None] = (),
    ) -> None:
        """Run *scheduler*.

        Args:
            scheduler: it.
            ahead: schedule one step before the last one's output is there, as async scheduling does.
            fails: whether a load leaves garbage in the n-th block of a request.
            by_blocks: tell failed blocks by id; else only the request, as connectors of hybrid models do.
            reach: by KV cache group, how many of the last tokens are attended to; None, and where nothing is said, all.

        """
        self.scheduler = scheduler
        self.outputs: dict[str, list[int]] = {}
        self.errors: dict[str, Any] = {}
        self._depth = 2 if ahead else 1
        self._fails = fails
        self._by_blocks = by_blocks or not TELLS_FAILED_RECEIVES
        self._reach = reach
        self._memory: dict[tuple[int, int], int] = {}
        self._tokens: dict[str, list[int]] = {}
        self._tables: dict[str, tuple[list[int], ...]] = {}
        self._finished: list[tuple[str, bool]] = []
        self._queue: deque[tuple[Any, Any]] = deque()

    @property
    def busy(self) -> bool:
        """Whether outputs are under way."""
        return bool(self._queue)

    def run(self, *requests: Any, steps: int = 200) -> None:
        """Add the requests and step until all have left."""
        for each in requests:
            self.scheduler.add_request(each)
        for _ in range(steps):
            if not self.scheduler.requests and not self._queue:
                return
            self.step()
        raise AssertionError(f"still there after {steps} steps: {sorted(self.scheduler.requests)}")

    def step(self) -> None:
        """Schedule and execute a step; take in the oldest output once enough are under way."""
        if self.scheduler.has_requests():
            scheduled = self.scheduler.schedule()
            self._queue.append((scheduled, self._execute(scheduled)))
            if len(self._queue) < self._depth:
                return
        for batch in self.scheduler.update_from_output(*self._queue.popleft()).values():
            for output in batch.outputs:
                self.outputs.setdefault(output.request_id, []).extend(output.new_token_ids)
                if output.finish_reason is not None and str(output.finish_reason) == "error":
                    self.errors[output.request_id] = client_text(output)

    def _execute(self, scheduled: Any) -> Any:
        self._update(scheduled)
        transfer = self._load(scheduled.kv_connector_metadata.loads)
        ids = list(scheduled.num_scheduled_tokens)
        sampled = [self._compute(each, scheduled.num_scheduled_tokens[each]) for each in ids]
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: index for index, each in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=transfer,
        )

    def _update(self, scheduled: Any) -> None:
        self._computed: dict[str, int] = {}
        for request_id in scheduled.finished_req_ids:
            self._tokens.pop(request_id, None)
            self._tables.pop(request_id, None)
        for new in scheduled.scheduled_new_reqs:
            self._tokens[new.req_id] = list(new.prompt_token_ids)
            self._tables[new.req_id] = tuple(list(group) for group in new.block_ids)
            self._computed[new.req_id] = new.num_computed_tokens
        cached = scheduled.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[index]
            if request_id in cached.all_token_ids:
                self._tokens[request_id] = list(cached.all_token_ids[request_id])
            if request_id in cached.resumed_req_ids:
                self._tables[request_id] = tuple(list(group) for group in blocks)
            elif blocks is not None:
                for table, added in zip(self._tables[request_id], blocks, strict=True):
                    table.extend(added)
            self._computed[request_id] = cached.num_computed_tokens[index]

    def _load(self, loads: list[Load]) -> Any:
        output = KVConnectorOutput()
        done, self._finished = self._finished, []
        output.finished_recving = {request_id for request_id, _ in done}
        if not self._by_blocks:
            output.failed_recving = {request_id for request_id, failed in done if failed}
        for load in loads:
            broken = self._fill(load)
            if load.waits:
                self._finished.append((load.request_id, bool(broken)))
            if self._by_blocks:
                output.invalid_block_ids |= broken
        return output

    def _fill(self, load: Load) -> set[int]:
        """Do a load; return the ids of the blocks that it leaves garbage in."""
        right, broken = self._stored(load), set()
        for group, blocks in enumerate(load.blocks):
            for position in range(load.start, load.end):
                block = blocks[position // BLOCK]
                failed = self._fails(load.request_id, position // BLOCK)
                self._memory[group, block * BLOCK + position % BLOCK] = GARBAGE if failed else right[position]
                # The null block, of what a window has left behind, is nobody's.
                if failed and block:
                    broken.add(block)
        return broken

    def _stored(self, load: Load) -> list[int]:
        """Return the right KV of a load's tokens and of all before them."""
        return contents(self.scheduler.requests[load.request_id].prompt_token_ids[: load.end])

    def _compute(self, request_id: str, count: int) -> list[int]:
        tokens, table = self._tokens[request_id], self._tables[request_id]
        first = self._computed[request_id]
        for position in range(first, first + count):
            kv = self._read(table, position)
            for group, blocks in enumerate(table):
                slot = blocks[position // BLOCK] * BLOCK + position % BLOCK
                self._memory[group, slot] = fingerprint(kv, self._source(request_id, position))
        if first + count < len(tokens):
            return []
        tokens.append(sample(self._read(table, first + count)))
        return [tokens[-1]]

    def _source(self, request_id: str, position: int) -> int:
        """Return what a position is computed from."""
        return self._tokens[request_id][position]

    def _read(self, table: tuple[list[int], ...], length: int) -> list[int]:
        """Return the KV of the first *length* tokens, wrong if it is wrong in any group that attends to it."""
        reach = [*self._reach, *[None] * (len(table) - len(self._reach))]
        kv = []
        for at in range(length):
            found = {
                self._memory.get((group, blocks[at // BLOCK] * BLOCK + at % BLOCK), GARBAGE)
                for group, blocks in enumerate(table)
                if (last := reach[group]) is None or at >= length - last
            }
            kv.append(found.pop() if len(found) == 1 else GARBAGE)
        return kv
