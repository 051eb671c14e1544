"""Penstock is on in this process and tells a recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.vllm.eplb import EplbHook

from tests.support import eplb_state
from tests.support.recorder import Recorder, recording

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
    eplb_state.without_a_group(monkeypatch)
    hook = EplbHook()
    hook.install()
    yield eplb_state.make_state
    hook.uninstall()
