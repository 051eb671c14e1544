"""vLLM's own requests that free blocks: several for one prefill, of which one fails and one does not."""

from __future__ import annotations

import pytest

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
)

_FIRST, _SECOND = "cmpl-cleanup-0-dddddddd", "cmpl-cleanup-1-eeeeeeee"


@pytest.mark.parametrize("asked", [PREFILL, DECODE, _FIRST, _SECOND, "cleanup-0", "cmpl-cleanup-1"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the failed one first", "the failed one last"])
async def test_each_is_told_for_itself(book, asked, order):
    """Whichever is asked for: the one whose load failed, the other one, and that neither is a reader of the blocks."""
    failed = closed_decode(finish_reason="error", scheduled_time_unix_nano=0, external_cached_tokens=0)
    clean_ups = (
        [(DECODE_WORKER, failed_load(_FIRST)), (DECODE_CORE, clean_up(_FIRST))],
        [(DECODE_CORE, clean_up(_SECOND))],
    )
    await book.append(
        [(PREFILL_CORE, closed(PREFILL)), (PREFILL_CORE, lease())],
        [(DECODE_WORKER, failed_load()), (DECODE_CORE, failed)],
        *(clean_ups[each] for each in order),
    )
    said = {each.split()[1]: each for each in sentences_of(book, asked)}
    assert set(said) == {PREFILL, DECODE, _FIRST, _SECOND}
    assert "could not load its KV state" in said[_FIRST]
    assert "vLLM's own clean-up request; ignore; it was under way for 50 ms" in said[_FIRST]
    assert "is vLLM's own clean-up request; ignore; it ended (abort)" in said[_SECOND]
    assert "released unread after 300 ms by vLLM's clean-up request" in said[PREFILL]
    assert "clean-up" not in said[DECODE]
