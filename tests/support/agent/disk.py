"""An agent whose disk is full."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from demo.common.steps import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.common.agent import Agent

# Bytes that a file of the agent may have meanwhile: less than its log has by then.
_FULL_AT: Final = 64 << 10


@contextmanager
def full_disk(agent: Agent) -> Iterator[None]:
    """Let no file of *agent* grow; returns once it has noticed, at the end once it has noticed that there is room."""
    pid = agent.child.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (_FULL_AT, before[1]))
    try:
        until(lambda: _unwritable(agent), "The agent does not notice that its disk is full")
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    until(lambda: not _unwritable(agent), "The agent does not notice that there is room again")


def _unwritable(agent: Agent) -> bool:
    return agent.metrics().value("penstock_agent_degraded", reason="journal_unwritable") == 1
