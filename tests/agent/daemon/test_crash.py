"""``kill -9`` in the middle of traffic: what was acknowledged is there exactly once."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.agent.journal.query.reader import Reader
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.agent import running_agent, wait_until
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = 4
# Acknowledgements, over all sources, between one kill and the next.
TRAFFIC = 30
EVENTS, SAMPLES = 3, 5


class Sender(threading.Thread):
    """One source that publishes for ever; it reconnects and resends whenever the agent is gone."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__(name=f"sender-{number}", daemon=True)
        self.engine = FakeEngine(address, engine=str(number))
        self.stopping = threading.Event()
        self.connected = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Publish until told to stop, then until all is acknowledged; a new batch only when the last one is."""
        try:
            while not self.stopping.is_set() or self.engine.unacknowledged:
                self._attempt()
        except BaseException as error:  # noqa: BLE001  (for the test to raise)
            self.error = error
        finally:
            self.engine.disconnect()

    def _attempt(self) -> None:
        try:
            if not self.connected:
                self.engine.connect()
                self.connected = True
            if not self.stopping.is_set():
                self._publish()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            self.connected = False
            # The pace of the attempts: the agent's next life is not there yet.
            time.sleep(0.05)

    def _publish(self) -> None:
        name = f"{self.name}-{self.engine.sent + 1}"
        events = [transfer_failure(f"{name}-{n}") for n in range(EVENTS)]
        self.engine.publish(*events, transfers=[f"{name}-s{n}" for n in range(SAMPLES)])


def logged(state_dir: Path) -> dict[int, list[int]]:
    """Return the numbers in the log, in its order, by epoch; each body must be its own batch."""
    numbers = defaultdict(list)
    with Reader(state_dir / "journal.db") as reader:
        for row in reader.batches(0, limit=1_000_000):
            batch = Batch.FromString(row.body)
            assert (batch.epoch, batch.seq) == (row.epoch, row.seq)
            if not batch.events[-1].HasField("source_lost"):
                numbers[row.epoch].append(row.seq)
    return numbers


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_kills_in_the_middle_of_traffic(kills):
    """After each, the log holds all that was acknowledged; at the end, log and counters hold each entry once."""
    with running_agent(["--source-grace=1h"]) as agent:
        senders = [Sender(agent.listen, number) for number in range(SOURCES)]
        for sender in senders:
            sender.start()
        for _ in range(kills):
            before = sum(sender.engine.acknowledged for sender in senders)
            wait_until(
                lambda: (
                    sum(sender.engine.acknowledged for sender in senders) >= before + TRAFFIC  # noqa: B023
                    or any(sender.error for sender in senders)
                ),
                "traffic between two kills",
            )
            agent.kill()
            acknowledged = {sender.engine.epoch: sender.engine.acknowledged for sender in senders}
            numbers = logged(agent.state_dir)
            for epoch, watermark in acknowledged.items():
                assert numbers[epoch][:watermark] == list(range(1, watermark + 1))
            agent.start()
        for sender in senders:
            sender.stopping.set()
        for sender in senders:
            sender.join(120)
            assert (sender.is_alive(), sender.error) == (False, None)
        check_counters(agent, senders, kills)
        agent.kill()
        numbers = logged(agent.state_dir)
        assert numbers == {sender.engine.epoch: list(range(1, sender.engine.sent + 1)) for sender in senders}
        agent.start()
        check_counters(agent, senders, kills)


def check_counters(agent, senders, kills):
    """Compare ``/metrics`` with what each sender has sent."""
    total = sum(sender.engine.sent for sender in senders)
    assert total >= kills * TRAFFIC
    # While they are saved they stand still.
    wait_until(lambda: agent.metric("penstock_transfers_total") == total * SAMPLES, "all is counted")
    for number, sender in enumerate(senders):
        sent, engine = sender.engine.sent, str(number)
        assert agent.metric("penstock_transfer_failures_total", engine=engine) == sent * EVENTS
        assert agent.metric("penstock_transfers_total", engine=engine) == sent * SAMPLES
        assert agent.metric("penstock_transfer_duration_seconds_count", engine=engine) == sent * SAMPLES
        assert agent.metric("penstock_events_total", engine=engine, kind="transfer_failure") == sent * EVENTS
