"""What a broken or a hostile client sends: refused and counted, at a bounded cost, without effect on others."""

from __future__ import annotations

import random
import re
import select
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from penstock.agent.ingest.admission import SHARED_BURST_BYTES
from penstock.agent.metrics.series.engine import CAP
from penstock.proto.v1.ingest_pb2 import Batch

from tests.faults.bench import bench
from tests.faults.extent import (
    DISORDERED,
    FLOOD_BATCHES,
    FLOOD_PEAK,
    FLOODERS,
    LABEL_VALUES,
    RECONNECTS,
)
from tests.faults.hostile import BODIES, EPOCH, OTHERS, PREFACE, hello, raw_connections, send
from tests.support.agent.agent import wait_until
from tests.support.agent.batches import add_transfers, transfer_failure
from tests.support.agent.ingest_client import FakeEngine

MIB = 1 << 20
# Half-open connections are closed 5 seconds after they came.
HANDSHAKE = 5.0
# In the burst that engines share; each counts as 2 KiB at least.
NEW_SOURCES = SHARED_BURST_BYTES // (2 << 10)
FLOOD_EVENTS = 800


@pytest.fixture(scope="module")
def stand():
    """Run an agent and a good producer for all tests of this file; at the end everything adds up."""
    with bench(producers=1, rate=100) as made:
        made.traffic()
        yield made
        made.settle()


@pytest.fixture(autouse=True)
def others_go_on(stand):
    """Check after each test that the producer's entries are taken as before."""
    yield
    stand.traffic(10)
    stand.audit()


def memory(stand):
    """Return what the agent holds, in MiB."""
    return stand.agent.metric("process_resident_memory_bytes") / MIB


def refused(stand):
    """Return how many messages and streams were refused so far."""
    return stand.agent.metric("penstock_agent_refused_messages_total") or 0


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_message_that_is_wrong(stand, body):
    """It ends its own stream with a status that says whose fault it is, and costs no memory to speak of."""
    before, held = refused(stand), memory(stand)
    code = send(stand.agent.listen, [hello(), body])
    assert code in {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
    # What gRPC itself refuses never reaches us.
    assert refused(stand) == before + (len(body) <= 2 * MIB)
    assert memory(stand) < held + 30


@pytest.mark.parametrize(("method", "body"), OTHERS.values(), ids=OTHERS)
def test_a_message_that_is_wrong_for_another_service(stand, method, body):
    """What is on the same socket has bounds of its own."""
    held = memory(stand)
    for _ in range(5):
        assert send(stand.agent.listen, [body], method=method) is grpc.StatusCode.INVALID_ARGUMENT
    assert memory(stand) < held + 60


def test_a_message_that_swells(stand):
    """A hundred megabytes of nothing, packed into a hundred kilobytes, are not unpacked."""
    held = memory(stand)
    code = send(stand.agent.listen, [bytes(100 * MIB)], compression=grpc.Compression.Gzip)
    assert code in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert memory(stand) < held + 30


def test_connections_that_say_nothing_useful(stand):
    """Silent, half-open, of another protocol, all at once: each is closed within seconds."""
    descriptors = stand.agent.metric("process_open_fds")
    path = stand.agent.listen.removeprefix("unix://")
    held = [
        connection
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", PREFACE[:10])
        for connection in raw_connections(path, 100, data)
    ]
    try:
        wait_until(lambda: not open_ones(held), "all are closed", HANDSHAKE + 60.0)
    finally:
        for connection in held:
            connection.close()
    wait_until(lambda: stand.agent.metric("process_open_fds") <= descriptors + 5, "their files are closed")


def open_ones(connections):
    """Return those that the other side has not closed."""
    readable, _, _ = select.select(connections, [], [], 0)
    return [one for one in connections if one not in readable or alive(one)]


def alive(connection):
    """Read what has come; tell whether the connection is still there."""
    try:
        return bool(connection.recv(65_536))
    except ConnectionError:
        return False


def test_reconnects(stand):
    """A client that comes and goes, every other time as someone else, leaves nothing behind."""
    descriptors, held = stand.agent.metric("process_open_fds"), memory(stand)
    strangers = 0
    for number in range(RECONNECTS):
        known = number % 2
        first = hello(EPOCH, "steady") if known else hello(EPOCH + number, "stranger")
        code = send(stand.agent.listen, [first])
        strangers += not known
        # Of those who have never been here only so many are let in at once.
        full = not known and strangers > NEW_SOURCES
        assert code is grpc.StatusCode.OK or (full and code is grpc.StatusCode.RESOURCE_EXHAUSTED)
    wait_until(lambda: stand.agent.metric("process_open_fds") <= descriptors + 5, "their files are closed")
    assert memory(stand) < held + 30


def test_a_flood(stand):
    """Many streams that send all they have and wait for nothing: each waits its turn, and memory stays bounded."""
    with ThreadPoolExecutor(FLOODERS) as pool:
        codes = set(pool.map(lambda number: send(stand.agent.listen, flood(number)), range(FLOODERS)))
    assert codes == {grpc.StatusCode.OK}
    wait_until(
        lambda: (
            sum(
                stand.agent.metric("penstock_events_total", engine=f"flood-{n}") or 0 for n in range(FLOODERS)
            )
            == FLOODERS * FLOOD_BATCHES * FLOOD_EVENTS
        ),
        "all are counted",
    )
    status = Path(f"/proc/{stand.agent.process.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert peak is not None
    assert int(peak[1]) < FLOOD_PEAK * 1024


def flood(number):
    """Yield the messages of one stream: its Hello, and batches of almost a mebibyte."""
    epoch = 0xF100D + number
    yield hello(epoch, f"flood-{number}")
    events = [transfer_failure(f"x{n}", error_text="x" * 900) for n in range(FLOOD_EVENTS)]
    for seq in range(1, FLOOD_BATCHES + 1):
        yield Batch(epoch=epoch, seq=seq, events=events).SerializeToString()


def test_duplicates_and_disorder(stand):
    """Batches that come again change nothing, one that comes too early ends the stream; then all is taken once."""
    pick, total = random.Random(7), DISORDERED
    with FakeEngine(stand.agent.listen, engine="shuffled") as engine:
        batches = [
            Batch(epoch=engine.epoch, seq=seq, events=[transfer_failure(f"x{seq}")])
            for seq in range(1, total + 1)
        ]
        while engine.acknowledged < total:
            batch = pick.choice(batches[: engine.acknowledged + 2])
            gap = batch.seq > engine.acknowledged + 1
            engine.send(batch)
            if gap:
                assert engine.failure() is grpc.StatusCode.FAILED_PRECONDITION
                assert engine.connect() == engine.acknowledged
            else:
                engine.wait(lambda: engine.acknowledged >= batch.seq, "the acknowledgement")  # noqa: B023
        wait_until(
            lambda: stand.agent.metric("penstock_transfer_failures_total", engine="shuffled") == total,
            "each is counted once",
        )


def test_a_label_bomb(stand):
    """A peer with a new name in every entry: the series stay within the cap, the sums stay right."""
    held, size = memory(stand), 10_000
    with FakeEngine(stand.agent.listen, engine="bomb") as engine:
        for first in range(0, LABEL_VALUES, size):
            engine.publish_batch(named_peers(first, size))
    # While the counters are saved, they stand still.
    wait_until(
        lambda: stand.agent.metric("penstock_transfers_total", engine="bomb") == LABEL_VALUES,
        "all are counted",
    )
    assert len(stand.agent.samples("penstock_transfers_total", engine="bomb")) <= CAP + 1
    assert stand.agent.metric("penstock_label_sets_folded_total", engine="bomb") >= LABEL_VALUES - CAP
    assert memory(stand) < held + 60


def named_peers(first, size):
    """Build a batch of *size* transfers, each with a peer of its own."""
    made = add_transfers(Batch(), [f"peer-{first + n}:1" for n in range(size)])
    made.transfers.peer[:] = made.transfers.request_id
    made.transfers.request_id[:] = [0] * size
    return made
