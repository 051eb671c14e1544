"""Limits of what one question reads from the journal."""

from __future__ import annotations

import pytest
from penstock.agent.journal.query.reader import Reader
from penstock.agent.traces.query import search
from penstock.agent.traces.spans import semconv
from penstock.agent.views.requests import tree_lines
from penstock.proto.v1.ingest_pb2 import Batch

from tests.support.agent.questions import sentences_of, trace_of
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    closed_decode,
    decode_story,
    failed_load,
    source,
)


async def test_what_is_read_for_one_question_is_bounded(book, monkeypatch):
    """The newest entries are explained; the answer reports that older ones are left out."""
    await book.append([(DECODE_WORKER, failed_load())], [(DECODE_CORE, closed_decode())])
    monkeypatch.setattr(search, "_BYTES", 1)
    good, cut = sentences_of(book, DECODE)
    assert "without trouble" in good
    assert cut == (f"The log has more entries of {DECODE} than one call reads; the oldest are missing here.")
    trace = trace_of(book, DECODE)
    (request,) = trace.spans
    assert request.attributes[semconv.HISTORY_CUT] == "true"
    assert "history_cut=true" in "\n".join(tree_lines(trace))


@pytest.mark.parametrize(("server", "read"), [("decode", 1), ("other", 0)])
async def test_what_is_read_of_engines_that_ended_is_bounded(book, monkeypatch, server, read):
    """The endings read are limited in number and to the engines of the request."""
    await book.append(decode_story())
    for epoch in range(100, 110):
        await book.add(source(epoch, server, "decode"), goodbye={"reason": "exit"})
    batches = []

    def batch(reader, number, original=Reader.batch):
        batches.append(original(reader, number))
        return batches[-1]

    monkeypatch.setattr(Reader, "batch", batch)
    monkeypatch.setattr(search, "_BYTES", 1)
    request = trace_of(book, DECODE).spans[0]
    assert semconv.ENGINE_LOST not in request.attributes
    # The newest batch of all tells the time.
    *batches, _ = batches
    assert sum(Batch.FromString(each.body).HasField("goodbye") for each in batches) == read


async def test_entries_of_one_request_are_bounded(book, monkeypatch):
    """Entries are limited as in the export, but the newest stay; the answer counts the missing ones."""
    await book.append([(DECODE_WORKER, failed_load())] * 3, [(DECODE_CORE, closed_decode())])
    monkeypatch.setattr(search, "_MAX_ENTRIES", 2)
    assert len(sentences_of(book, DECODE)) == 2
    request = trace_of(book, DECODE).spans[0]
    assert request.attributes[semconv.ENTRIES_DROPPED] == "2"
    assert request.attributes[semconv.HISTORY_CUT] == "true"
