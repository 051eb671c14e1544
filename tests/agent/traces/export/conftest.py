"""An exporter that polls often."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.agent.traces.export.exporter._POLL_SECONDS", 0.01)
    monkeypatch.setattr("penstock.agent.traces.export.exporter._DRAIN_POLL_SECONDS", 0.01)
    monkeypatch.setattr("penstock.agent.traces.export.journal_tail._COMMIT_NANO", 100_000_000)
