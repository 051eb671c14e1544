"""Penstock is on in this process and tells a recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.vllm.eplb.hook import EplbHook

from tests.support.engine.recorder import Recorder, recording
from tests.support.eplb import state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Give the recorder."""
    with recording(monkeypatch) as found:
        yield found


@pytest.fixture
def make_state(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Install the hook over parts that need no group, and build states."""
    del recorder
    state.without_a_group(monkeypatch)
    hook = EplbHook()
    hook.install()
    yield state.make_state
    hook.uninstall()
