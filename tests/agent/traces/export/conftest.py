"""An exporter that polls often, and short pauses between retries for the tests that use them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.agent.traces.export.exporter._POLL_SECONDS", 0.01)
    monkeypatch.setattr("penstock.agent.traces.export.exporter._DRAIN_POLL_SECONDS", 0.01)
    monkeypatch.setattr("penstock.agent.traces.export.journal_tail._COMMIT_NANO", 100_000_000)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pauses between retries short."""
    monkeypatch.setattr("penstock.agent.traces.export.delivery._FIRST_BACKOFF", 0.02)
    monkeypatch.setattr("penstock.agent.traces.export.delivery._MAX_BACKOFF", 0.05)
