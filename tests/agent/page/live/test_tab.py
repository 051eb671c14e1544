"""What waits for one tab: bounds, positions, and the goodbye. Without a server."""

from __future__ import annotations

import base64
import json
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.page.live.entries import LogEntry, Message, message, parts
from penstock.agent.page.live.poller import questions
from penstock.agent.page.live.tab import (
    MAX_BEHIND,
    MAX_WAITING_BYTES,
    WHOLE,
    Position,
    Tab,
    read,
    resumed,
    written,
)
from penstock.agent.page.wire import MAX_MESSAGE_BYTES, AnswerError, encode
from penstock.proto.v1 import admin_pb2 as admin


def _entry(number: int, text: str = "") -> LogEntry:
    return LogEntry(f"{number}/0", number, "0", "", f"r-{number}", "forgotten", "", "info", text, "")


async def _all(tab: Tab) -> list[Message]:
    found = []
    tab.end("stopping", "") if not tab.ended else None
    while (item := await tab.next()) is not None:
        found.append(item)
    return found


async def test_a_tab_that_does_not_read_is_told_so_once() -> None:
    """What waited is dropped: the tab connects again with its own position."""
    tab = Tab()
    for _ in range(MAX_WAITING_BYTES // 1000 + 1):
        tab.put(Message("log", b"x" * 1000))
    assert tab.ended
    found = await _all(tab)

    assert [each.event for each in found] == ["bye"]
    assert json.loads(found[0].data)["reason"] == "slow"


async def test_a_screen_takes_the_place_of_one_that_waits() -> None:
    """Only the newest is of use; entries stay in their order."""
    tab = Tab()
    for each in (
        Message("screen", b"1"),
        Message("log", b"a"),
        Message("screen", b"2"),
        Message("log", b"b"),
    ):
        tab.put(each)

    assert [(await tab.next()).data for _ in range(3)] == [b"a", b"2", b"b"]  # type: ignore[union-attr]


@given(st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=12), st.integers(-1, 40))
def test_each_entry_behind_the_position_is_taken_once(runs: list[list[int]], after: int) -> None:
    """In whatever overlapping pieces a stream brings them, as long as each piece ascends."""
    tab = Tab()
    tab.positions = {"": Position(after, 0)} if after >= 0 else {}
    expected, at = [], after
    for run in runs:
        piece = sorted({*run})
        tab.put_entries([("", Position(each, 0), _entry(each)) for each in piece], None)
        new = [each for each in piece if each > at]
        expected += new
        at = max([at, *new])
    taken = [
        int(entry["request"].removeprefix("r-"))
        for item in tab._waiting
        for entry in json.loads(item.data)["entries"]
    ]

    assert taken == expected
    assert not tab._waiting or read(tab._waiting[-1].id) == tab.positions


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(NAMES, st.tuples(st.integers(0, 2**64 - 1), st.integers(0, WHOLE)), max_size=20))
def test_an_id_is_read_as_it_was_written(places: dict[str, tuple[int, int]]) -> None:
    """It has no character that a header or an event stream would break at."""
    positions = {name: Position(*place) for name, place in places.items()}
    text = written(positions)

    assert read(text) == positions
    assert text.replace("-", "").replace("_", "").isalnum()


@given(st.text(max_size=200))
def test_any_other_text_is_refused(text: str) -> None:
    """With a sentence, and nothing worse."""
    with suppress(AnswerError):
        found = read(text)
        assert read(written(found)) == found


def test_an_id_that_swells_is_not_unpacked() -> None:
    """A kilobyte may stand for gigabytes."""
    packed = base64.urlsafe_b64encode(zlib.compress(b"[" * (1 << 23))).decode()
    with pytest.raises(AnswerError):
        read(packed)


@pytest.mark.parametrize(
    ("after", "last", "first", "start", "said"),
    [
        ((5, 1), (9, WHOLE), 1, (5, 1), ""),
        ((5, 1), (5, WHOLE), 6, (5, 1), ""),
        ((5, 1), (9, WHOLE), 8, (7, WHOLE), "between the batches 5 and 8"),
        ((50, 0), (9, WHOLE), 1, (0, 0), "was replaced"),
        ((5, 0), (MAX_BEHIND + 100, WHOLE), 1, (99, WHOLE), "between the batches 5 and 100"),
    ],
)
def test_where_a_tab_goes_on(
    after: tuple[int, int], last: tuple[int, int], first: int, start: tuple[int, int], said: str
) -> None:
    """Behind its position, or where the journal begins, which is said."""
    found, sentences = resumed({"": Position(*after)}, {"": Position(*last)}, {"": first})

    assert found == {"": Position(*start)}
    assert len(sentences) == bool(said)
    assert said in "".join(sentences)


def test_an_agent_that_is_away_keeps_its_position() -> None:
    """And one that has come meanwhile begins at its end."""
    found, sentences = resumed({"a": Position(5, 0)}, {"b": Position(7, WHOLE)}, {"b": 1})

    assert found == {"a": Position(5, 0), "b": Position(7, WHOLE)}
    assert sentences == []


@given(st.lists(st.integers(0, 3_000), max_size=60))
def test_parts_are_whole_and_small(sizes: list[int]) -> None:
    """Every entry is in one of them, in its order."""
    entries = [_entry(number, "\N{SNOWMAN}" * size) for number, size in enumerate(sizes)]
    found = parts("log", entries)

    assert [entry for part in found for entry in part.entries] == entries
    assert all(part.message == message("log", {"entries": part.entries}) for part in found)
    assert all(len(part.message.data) <= MAX_MESSAGE_BYTES for part in found)


def test_large_answers_are_asked_for_less_often() -> None:
    """So that a fleet of any size takes the same share of a core."""
    peers = next(each for each in questions() if each.name == "peers")
    diagnosis = next(each for each in questions() if each.name == "diagnosis")

    def listed(count: int) -> admin.ListPeersResponse:
        return admin.ListPeersResponse(peers=[admin.PeerSummary()] * count)

    assert peers.pause(listed(10), 5.0) == 1.0
    assert peers.pause(listed(6_000), 0.0) == 15.0
    assert peers.pause(listed(100_000), 0.0) == 60.0
    # What ranks them itself makes a row for few.
    assert peers.pause(admin.ListPeersResponse(total=200_000), 0.0) == 40.0
    assert diagnosis.pause(admin.Diagnosis(), 0.08) == 10.0
    assert diagnosis.pause(admin.Diagnosis(), 0.4) == 50.0


def test_what_is_no_number_is_null() -> None:
    """JSON has neither infinity nor NaN."""
    assert encode({"a": [float("nan"), float("inf"), 1.5]}) == b'{"a":[null,null,1.5]}'
