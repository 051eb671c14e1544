"""Front ends are told that they are out of rotation, and that they still are."""

from __future__ import annotations

from penstock.agent.ingest import service
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.ingest_client import FakeEngine


def _told(engine: FakeEngine) -> list[int]:
    return [ack.out_of_rotation_seconds for ack in engine._acks]


def test_the_front_ends_of_a_server_are_told_at_once(ingest):
    """By an acknowledgement of the agent's own; the server's engines and other servers hear nothing."""
    with (
        FakeEngine(ingest.address, server="a", engine="", process="api") as front_end,
        FakeEngine(ingest.address, server="a") as core,
        FakeEngine(ingest.address, server="b", engine="", process="api") as other,
    ):
        ingest.call(lambda: ingest.rotation.set(a=60))
        front_end.wait(lambda: _told(front_end) == [0, 60], "the order")
        ingest.call(ingest.rotation.set)
        front_end.wait(lambda: _told(front_end) == [0, 60, 0], "its end")
        assert (_told(core), _told(other)) == ([0], [0])


def test_the_greeting_says_so(ingest):
    """A front end that restarts is out at once."""
    ingest.call(lambda: ingest.rotation.set(a=42))
    with FakeEngine(ingest.address, server="a", engine="", process="api") as front_end:
        assert _told(front_end) == [42]


def test_an_order_is_renewed_while_the_front_end_reports(ingest, monkeypatch):
    """With its snapshots, every twenty seconds; and what ends by itself is told."""
    with FakeEngine(ingest.address, server="a", engine="", process="api") as front_end:
        ingest.call(lambda: ingest.rotation.set(a=60))
        front_end.wait(lambda: _told(front_end) == [0, 60], "the order")
        front_end.snapshot(Snapshot())
        monkeypatch.setattr(service, "_RENEWAL_SECONDS", 0.0)
        ingest.call(lambda: ingest.rotation.servers.update(a=59))
        front_end.snapshot(Snapshot())
        # Of the two, the first may be too early for a renewal.
        front_end.wait(lambda: _told(front_end)[:3] == [0, 60, 59], "the renewal")
        ingest.call(ingest.rotation.servers.clear)
        front_end.snapshot(Snapshot())
        front_end.wait(lambda: _told(front_end)[-1] == 0, "the end")
        said = len(front_end._acks)
        front_end.snapshot(Snapshot())
        front_end.publish()
        assert len(front_end._acks) == said + 1
