"""What goes on after its caller has gone: to the end, and without a word about errors that were for the caller."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from penstock.agent.aio import to_completion
from penstock.agent.errors import NotFoundError


async def _left_with(error: Exception | None) -> list[dict[str, Any]]:
    """Cancel the caller of work that then ends with *error*; return what the loop was told."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    begun, end = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await end.wait()
        if error is not None:
            raise error

    caller = asyncio.ensure_future(to_completion(work()))
    await begun.wait()
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    gc.collect()
    return told


@pytest.mark.parametrize("error", [None, NotFoundError("no request 'r'")])
def test_an_error_for_a_caller_that_has_gone(error: Exception | None) -> None:
    """Nobody is told: "Task exception was never retrieved" is no news of an agent's."""
    assert asyncio.run(_left_with(error)) == []


def test_an_error_that_nobody_has_foreseen() -> None:
    """It is a bug, and told once."""
    (told,) = asyncio.run(_left_with(KeyError("x")))
    assert isinstance(told["exception"], KeyError)
    assert told["message"] == "what went on after its caller had gone has failed"
