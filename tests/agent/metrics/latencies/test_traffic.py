"""What is moved to and from a peer: exact sums, 64 bits, restored, and read from what an older agent wrote."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.batch.columns import BatchColumns
from penstock.agent.metrics.latencies.peers import PeerLatencies
from penstock.agent.metrics.latencies.time_slots import FINEST_NANO
from penstock.agent.metrics.latencies.traffic import Traffic, TrafficSum, moved
from penstock.agent.model import EngineKey
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.batches import PEER, TIME
from tests.support.agent.metric_logs import SECOND, UNTIMED, transfers

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEY = EngineKey("", "0")
_OK, _ERROR = common.TRANSFER_RESULT_OK, common.TRANSFER_RESULT_ERROR
_RECEIVED = (common.CHANNEL_KV, common.DIRECTION_RECEIVE)
_SENT = (common.CHANNEL_EC, common.DIRECTION_SEND)

_Row = tuple[int, int, int, int, int, int]
_ROWS: st.SearchStrategy[list[_Row]] = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 3, 9]),
        st.sampled_from([0, 1, 2, 7]),
        st.integers(0, 2),
        st.sampled_from([0, 1, 2]),
        st.integers(-40, 60).map(lambda seconds: TIME + seconds * SECOND),
        st.one_of(st.just(0), st.integers(0, 1 << 50)),
    ),
    min_size=1,
    max_size=40,
)
"""Channel, direction, peer, result, end, bytes."""


def _batch(rows: Sequence[_Row]) -> Batch:
    batch = Batch(strings=["", "p1", "p2"])
    columns = batch.transfers
    for channel, direction, peer, result, end, size in rows:
        columns.channel.append(channel)  # type: ignore[arg-type]
        columns.direction.append(direction)  # type: ignore[arg-type]
        columns.peer.append(peer)
        columns.result.append(result)  # type: ignore[arg-type]
        columns.end_time_unix_nano.append(end)
        columns.bytes.append(size)
    return batch


@UNTIMED
@given(_ROWS)
def test_every_transfer_counts_once(rows: list[_Row]) -> None:
    """In the slot of its end, and not if that is ahead of the clock: as one by one."""
    latest = TIME + 30 * SECOND
    ok, failed, sized, size_of = Counter(), Counter(), Counter(), Counter()  # type: ignore[var-annotated]
    for channel, direction, peer, result, end, size in rows:
        place = (peer, end // FINEST_NANO, channel, direction)
        if end <= latest:
            ok[place] += result == _OK
            failed[place] += result != _OK
            sized[place] += result == _OK and size > 0
            size_of[place] += size * (result == _OK)
    found = moved(BatchColumns(_batch(rows)), latest)
    assert {
        (peer, slot, *way): each for (peer, slot), ways in found.items() for way, each in ways.items()
    } == {place: TrafficSum(ok[place], failed[place], sized[place], size_of[place]) for place in ok}


@UNTIMED
@given(_ROWS)
def test_a_batch_alike_counts_as_any_other(rows: list[_Row]) -> None:
    """The short way has the same sums as the long one."""
    alike = [(*rows[0][:4], rows[0][4], size) for *_, size in rows]
    other = (*rows[0][:2], 3 - min(rows[0][2], 2), *rows[0][3:])
    latest = TIME + 3600 * SECOND
    batch = _batch([*alike, other])
    batch.strings.append("p3")
    whole = moved(BatchColumns(batch), latest)
    place = (rows[0][2], rows[0][4] // FINEST_NANO)
    assert moved(BatchColumns(_batch(alike)), latest)[place] == whole[place]


def test_bytes_beyond_32_bits_are_exact() -> None:
    """400 GB/s for 15 minutes."""
    found, second = Traffic(), 400 * 10**9
    for number in range(900):
        found.add(TIME + number * SECOND, {_RECEIVED: TrafficSum(1, 0, 1, second)})
    end = TIME + 900 * SECOND
    total = found.sum(0, end + 60 * SECOND)[_RECEIVED]
    assert total == TrafficSum(900, 0, 900, 900 * second)


@UNTIMED
@given(_ROWS)
def test_what_is_saved_comes_back(rows: list[_Row]) -> None:
    """Through JSON, with the sums of each direction; unknown channels and directions take no room."""
    found = Traffic()
    for (_, slot), ways in moved(BatchColumns(_batch(rows)), TIME + 60 * SECOND).items():
        found.add(slot * FINEST_NANO, ways)
    again = Traffic.load(json.loads(json.dumps(found.dump())))
    assert again.dump() == found.dump()
    assert again.newest == found.newest
    assert {(channel, direction) for channel, direction, _ in found.dump()} <= {
        (channel, direction) for channel in (1, 2, 3) for direction in (1, 2)
    }


def test_the_windows_of_a_peer_have_both_directions() -> None:
    """And the failures of 15 minutes, of which the last minute has fewer."""
    batch = transfers([(5_000_000, 100, PEER, _OK), (5_000_000, 40, PEER, _ERROR), (1, 0, PEER, _OK)])
    sent = transfers([(5_000_000, 7, PEER, _OK)], time_ns=TIME - 600 * SECOND)
    sent.transfers.channel[:], sent.transfers.direction[:] = [_SENT[0]], [_SENT[1]]
    old = transfers([(5_000_000, 1 << 40, PEER, _OK)], time_ns=TIME - 3600 * SECOND)
    found = PeerLatencies(clock=lambda: TIME)
    for each in (old, sent, batch):
        found.apply(_KEY, BatchColumns(each))
    windows = found.windows(_KEY, PEER, TIME)
    assert windows is not None
    assert windows.traffic == {_RECEIVED: TrafficSum(2, 1, 1, 100), _SENT: TrafficSum(1, 0, 1, 7)}


def test_a_row_of_an_older_agent_has_no_traffic() -> None:
    """It is taken over, and counts from now on."""
    found = PeerLatencies(clock=lambda: TIME)
    found.apply(_KEY, BatchColumns(transfers([(5_000_000, 100, PEER, _OK)])))
    (row,) = json.loads(json.dumps(list(found.dump())))
    again = PeerLatencies(clock=lambda: TIME)
    again.load([row[:-2]])
    windows = again.windows(_KEY, PEER, TIME)
    assert windows is not None
    assert windows.traffic == {}
    assert windows.transfers.last_minute.count == 1
    again.apply(_KEY, BatchColumns(transfers([(5_000_000, 3, PEER, _OK)])))
    windows = again.windows(_KEY, PEER, TIME)
    assert windows is not None
    assert windows.traffic[_RECEIVED].bytes == 3


@pytest.mark.parametrize("rows", [3, [1], [[1, 1]], [[1, 1, [1]]], [[1, 1, [1, [[0, 1, [[9, 1]]]]]]]])
def test_rows_of_another_shape_are_refused(rows: object) -> None:
    """With one of the errors after which the windows begin empty."""
    with pytest.raises((ValueError, TypeError, LookupError, OverflowError)):
        Traffic.load(rows)  # type: ignore[arg-type]
