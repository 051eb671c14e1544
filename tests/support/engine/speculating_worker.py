"""A toy worker that drafts tokens and verifies them, under a real scheduler without async scheduling."""

from __future__ import annotations

from typing import Any

from tests.support.engine.fake_worker import ToyEngine, expected, fingerprint, sample
from tests.support.engine.schedulers import BLOCK

DRAFTS = 3


class SpeculatingEngine(ToyEngine):
    """Drafts two right tokens and a wrong one behind each step that samples.

    As in vLLM, a request that is sent back to the queue by the step's output gets its drafts nevertheless.

    Attributes:
        accepted: drafts that were right.

    """

    def __init__(self, scheduler: Any, **arguments: Any) -> None:
        super().__init__(scheduler, ahead=False, **arguments)
        scheduler.num_spec_tokens = DRAFTS
        self.accepted = 0
        self._drafts: dict[str, list[int]] = {}
        self._sampled: list[str] = []

    def step(self) -> None:
        """Execute a step, then draft what may follow it."""
        from vllm.v1.outputs import DraftTokenIds

        super().step()
        drafts = [[*expected(self._tokens[each], DRAFTS - 1), 1] for each in self._sampled]
        self.scheduler.update_draft_token_ids(DraftTokenIds(self._sampled, drafts))

    def _execute(self, scheduled: Any) -> Any:
        self._drafts = scheduled.scheduled_spec_decode_tokens
        output = super()._execute(scheduled)
        self._sampled = [
            each for each, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True) if tokens
        ]
        return output

    def _compute(self, request_id: str, count: int) -> list[int]:
        drafts = self._drafts.get(request_id, [])
        tokens, table = self._tokens[request_id], self._tables[request_id]
        first = self._computed[request_id]
        inputs = [*tokens, *drafts]
        for position in range(first, first + count):
            kv = self._read(table, position)
            for group, blocks in enumerate(table):
                slot = blocks[position // BLOCK] * BLOCK + position % BLOCK
                self._memory[group, slot] = fingerprint(kv, inputs[position])
        if first + count < len(inputs):
            return []
        known = len(tokens)
        sampled = [sample(self._read(table, known))]
        for draft in drafts:
            if draft != sampled[-1]:
                break
            self.accepted += 1
            sampled.append(sample(self._read(table, known + len(sampled))))
        tokens.extend(sampled)
        return sampled
