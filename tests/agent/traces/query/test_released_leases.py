"""How a lease ended: its engine knows that it was released, the reader's engine whether anybody had read it."""

from __future__ import annotations

import pytest
from penstock.proto.v1 import common_pb2

from tests.support.agent.batches import deferral_end, deferral_start
from tests.support.agent.questions import sentences_of
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    PREFILL,
    PREFILL_CORE,
    clean_up,
    closed,
    closed_decode,
    failed_load,
    lease,
    outcome,
    sample,
)

_CLEAN_UP = "cmpl-cleanup-0-dddddddd"
_MINE = [(PREFILL_CORE, closed(PREFILL)), (PREFILL_CORE, lease())]


async def _said(book, *entries):
    await book.append(_MINE, list(entries))
    return next(each for each in sentences_of(book, PREFILL) if PREFILL in each)


async def test_where_the_reader_is_not_known_both_are_possible(book):
    """One pod's log has one side."""
    said = await _said(book)
    assert (
        "26 blocks for its reader, released (by a read or by a clean-up) after 300 ms, without trouble"
        in said
    )


@pytest.mark.parametrize(
    "entries",
    [
        [(DECODE_WORKER, sample(DECODE)), (DECODE_CORE, closed_decode(external_cached_tokens=0))],
        [(DECODE_CORE, closed_decode())],
    ],
    ids=["transfer", "tokens"],
)
async def test_a_reader_that_loaded_the_blocks_read_them(book, entries):
    """Its transfer says so, or its tokens."""
    assert "26 blocks for its reader, read after 300 ms, without trouble" in await _said(book, *entries)


async def test_a_clean_up_is_no_reader(book):
    """Decode has rejected the request: the blocks were kept in vain."""
    said = await _said(book, (DECODE_CORE, clean_up(_CLEAN_UP)))
    assert "26 blocks for its reader, released unread after 300 ms by vLLM's clean-up request." in said
    assert "without trouble" not in said


async def test_a_clean_up_after_a_failed_load_is_no_reader_either(book):
    """The user's request has failed before it."""
    failed = closed_decode(finish_reason="error", scheduled_time_unix_nano=0, external_cached_tokens=0)
    said = await _said(
        book,
        (DECODE_WORKER, failed_load()),
        (DECODE_CORE, outcome(DECODE, common_pb2.OUTCOME_FAILED)),
        (DECODE_CORE, failed),
        (DECODE_CORE, clean_up(_CLEAN_UP)),
    )
    assert "released unread after 300 ms by vLLM's clean-up request." in said


async def test_a_clean_up_beside_a_read_changes_nothing(book):
    """As of a request that was aborted after its load."""
    said = await _said(book, (DECODE_CORE, closed_decode()), (DECODE_CORE, clean_up(_CLEAN_UP)))
    assert ", read after 300 ms" in said


async def test_a_request_that_was_aborted_before_its_load_is_no_reader(book):
    """A client that went away."""
    closing = closed_decode(finish_reason="abort", scheduled_time_unix_nano=0, external_cached_tokens=0)
    assert "released unread after 300 ms." in await _said(book, (DECODE_CORE, closing))


async def test_a_reader_that_had_the_blocks_is_no_trouble(book):
    """A full hit of its own prefix cache."""
    closing = closed_decode(external_cached_tokens=0, local_cached_tokens=400)
    said = await _said(book, (DECODE_CORE, closing))
    assert "released unread after 300 ms, because its reader needed none of them, without trouble" in said


async def test_a_reader_that_has_not_ended_may_have_read(book):
    """It is not known yet."""
    said = await _said(book, (DECODE_CORE, deferral_start(DECODE, remote_request_id=PREFILL)))
    assert "(by a read or by a clean-up)" in said


async def test_a_wait_that_ended_well_was_a_read(book):
    """Also where no transfer was reported."""
    aborted = closed_decode(finish_reason="abort", scheduled_time_unix_nano=0, external_cached_tokens=0)
    said = await _said(book, (DECODE_CORE, deferral_end(DECODE)), (DECODE_CORE, aborted))
    assert ", read after 300 ms" in said
