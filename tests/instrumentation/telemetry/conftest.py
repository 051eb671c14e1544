"""Fixtures of the telemetry tests: shorter intervals."""

from __future__ import annotations

import pytest
from penstock.instrumentation.telemetry import snapshots


@pytest.fixture
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a snapshot due every 50 ms, not every second."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_INTERVAL", 0.05)


@pytest.fixture
def quick_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an exporter that is made from now on wait at most 50 ms between two attempts."""
    monkeypatch.setattr("penstock.instrumentation.transport.background_thread.BACKOFF_INITIAL", 0.01)
    monkeypatch.setattr("penstock.instrumentation.transport.background_thread.BACKOFF_MAXIMUM", 0.05)
