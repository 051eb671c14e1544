"""The tests' agents and relays are forks, which start in a tenth of the time."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import TYPE_CHECKING

from tests.support.agent.agent import running_agent
from tests.support.agent.relay import running_relay
from tests.support.forks import zygote
from tests.support.forks.fork_server import Fork
from tests.support.forks.zygote import Poll, Start

if TYPE_CHECKING:
    import pytest


def test_vllm_in_this_process_does_not_prevent_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configured for the CPU, vLLM sets LD_PRELOAD in this process's environment, at any time."""
    with running_agent() as before:
        monkeypatch.setenv("LD_PRELOAD", "libgomp.so.1")
        with running_agent() as agent, running_relay(agent.directory, f"--agents=one={agent.admin}") as relay:
            assert {type(each.process) for each in (before, agent, relay)} == {Fork}


def test_a_fork_whose_id_was_another_ones_has_its_own_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives an id again, on a busy machine within minutes."""
    ours, theirs = multiprocessing.Pipe()
    ends = iter([(7, 9), (0, 0)])
    monkeypatch.setattr(os, "fork", lambda: 7)
    monkeypatch.setattr(os, "waitpid", lambda pid, _: next(ends))
    monkeypatch.setattr(zygote, "_end", lambda _: None)
    answering = threading.Thread(target=zygote._answer, args=(theirs,))
    answering.start()
    start, answers = Start("module", (), {}, "/", None, "/dev/null", session=False), []
    try:
        for message in (start, Poll(7), start, Poll(7)):
            ours.send(message)
            answers.append(ours.recv())
    finally:
        ours.close()
        answering.join(60)
        theirs.close()
    assert answers == [7, -9, 7, None]
