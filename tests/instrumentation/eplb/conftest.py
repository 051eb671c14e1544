"""Penstock is on in this process and tells a recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.recorder import Recorder, recording

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Give the recorder."""
    with recording(monkeypatch) as found:
        yield found
