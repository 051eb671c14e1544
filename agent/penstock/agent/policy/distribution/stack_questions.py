"""Questions for the stacks of an engine, on their way with a push, and their answers. One loop."""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.agent.errors import ContractError, FullError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.model import EngineKey
    from penstock.proto.v1.policy_pb2 import StackDump

MAX_DUMP_BYTES: Final = 80 << 10
"""An engine sends 64 KiB at most, and what is around them."""


class StackQuestions:
    """One open question for each engine at most: a second caller is refused, as each costs the engine some milliseconds."""

    def __init__(self) -> None:
        self._open: dict[EngineKey, tuple[int, asyncio.Future[StackDump]]] = {}

    @contextmanager
    def asked(self, key: EngineKey) -> Iterator[tuple[int, asyncio.Future[StackDump]]]:
        """Open a question to an engine for the length of the context; gives its number and its answer.

        Raises:
            FullError: another one is open.

        """
        if key in self._open:
            raise FullError(
                f"engine {key} is being asked for its stacks by another caller; ask again in a few seconds"
            )
        answer: asyncio.Future[StackDump] = asyncio.get_running_loop().create_future()
        question = random.getrandbits(63) | 1
        self._open[key] = (question, answer)
        try:
            yield question, answer
        finally:
            del self._open[key]
            answer.cancel()

    def answer(self, key: EngineKey, dump: StackDump) -> None:
        """Take the answer of an engine; one without a waiting caller is dropped.

        Raises:
            ContractError: it is too large.

        """
        size = dump.ByteSize()
        if size > MAX_DUMP_BYTES:
            raise ContractError(f"a dump of stacks has {size} bytes; at most {MAX_DUMP_BYTES}")
        question, answer = self._open.get(key, (0, None))
        if answer is not None and question == dump.id and not answer.done():
            answer.set_result(dump)
