"""Spans of stories, as the assembler finishes them."""

from __future__ import annotations

from typing import Any

from penstock.agent.traces.assembly.assembler import Assembler
from penstock.agent.traces.assembly.sampling import Sampler

from tests.support.agent.stories import (
    SECOND,
    SOURCES,
    Log,
)


def spans_of(*stories, sample_ratio=1.0):
    """Assemble *stories* and return their spans by name, the lists in the order of their finish."""
    log = Log()
    for story in stories:
        log.tell(story)
    assembler = Assembler(SOURCES.get, sampler=lambda _source: Sampler(sample_ratio, sample_ratio))
    finished = [item for logged in log.batches for item in assembler.apply(logged)]
    finished += assembler.advance(log.now + 60 * SECOND)
    found: dict[str, list[Any]] = {}
    for item in finished:
        for span in item.spans:
            found.setdefault(span.name, []).append(span)
    return found


def only(found, name):
    """Return the only span of a name."""
    (span,) = found[name]
    return span
