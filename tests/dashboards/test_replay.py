"""The replay of scrapes on a slower clock: counters rise evenly, moments move, the shipped rules judge."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from demo.common.metrics import Metrics
from tests.support.prometheus.replay import Replay

if TYPE_CHECKING:
    from pathlib import Path

_LABELS = 'engine="0",server="decode"'
_CONNECTED = f"penstock_engine_connected{{{_LABELS}}} 1\n"


class _Agent:
    """Shows what the test says."""

    def __init__(self) -> None:
        self.text = _CONNECTED

    def metrics(self) -> Metrics:
        return Metrics.parse(self.text)


def test_what_an_agent_shows_once_is_so_since_the_scrape_before(tmp_path: Path) -> None:
    """A gauge of the second scrape holds in between, a moment between two scrapes is between their minutes."""
    agent = _Agent()
    replay = Replay(agent.metrics)
    replay.scrape(0)
    begun = time.time()
    waits = f'{{{_LABELS},reason="remote_kv",peer="10.0.0.7:5600"}} {begun}\n'
    agent.text += f"penstock_oldest_deferral_start_timestamp_seconds{waits}"
    replay.scrape(10)

    (alert,) = replay.firing(tmp_path)

    assert (alert.name, alert.labels["server"]) == ("PenstockRequestsDeferred", "decode")
    assert "because of remote_kv (10.0.0.7:5600)" in alert.words
    assert alert.annotations["run"].startswith("agentctl ")


def test_a_counter_rises_evenly(tmp_path: Path) -> None:
    """Some of the failures of an hour are in the window of the alert; half an hour later none is."""
    agent = _Agent()
    replay = Replay(agent.metrics)
    replay.scrape(0)
    agent.text += (
        f'penstock_transfer_failures_total{{{_LABELS},channel="kv",connector="NixlConnector",mode="handshake",'
        'error_type="incompatible",peer="10.0.0.7:5600",rehearsal="false"} 10\n'
    )
    replay.scrape(60)

    assert {alert.name for alert in replay.firing(tmp_path)} >= {"PenstockIncompatiblePeers"}

    replay.scrape(90)

    assert not replay.firing(tmp_path)
