"""Which spans are given up: those that are refused while all others are taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.model import EngineKey, Source
from penstock.agent.traces.export.suspect_spans import MAX_SUSPECTS, REFUSALS, STRIKES, Suspects
from penstock.agent.traces.spans.model import Span

SPAN = Span("0" * 32, "0" * 16, "", "kv.load", 1, 2, Source(1, EngineKey("", "0"), "worker"), {})


def suspected() -> Suspects:
    """Return a set of one."""
    suspects = Suspects()
    suspects.add(SPAN, "boom")
    return suspects


def test_refused_while_others_are_taken():
    """The last of the strikes in a row condemns it."""
    suspects = suspected()
    (suspect,) = suspects
    for _ in range(STRIKES - 1):
        assert suspects.taken() == []
        suspects.refused(suspect, "boom")
    assert suspects.taken() == [suspect]


def test_others_that_are_taken_prove_nothing_by_themselves():
    """Between two of its own refusals they count once."""
    suspects = suspected()
    for _ in range(10 * STRIKES):
        assert suspects.taken() == []


@given(st.lists(st.sampled_from(["refused", "taken", "failed"]), max_size=60))
def test_any_order(happened):
    """It is given up exactly after so many pairs without a failure of others between."""
    suspects = suspected()
    (suspect,) = suspects
    row, refused = 0, True
    for what in happened:
        if what == "refused":
            suspects.refused(suspect, "boom")
            refused = True
        elif what == "failed":
            suspects.failed()
            row = 0
        else:
            row, refused = row + refused, False
            assert suspects.taken() == ([suspect] if row >= STRIKES else [])


def test_they_are_bounded():
    """Each takes room, and gives it back."""
    suspects = suspected()
    assert suspects.room == MAX_SUSPECTS - 1
    suspects.remove(next(iter(suspects)))
    assert (suspects.room, len(suspects)) == (MAX_SUSPECTS, 0)


def test_too_many():
    """The one that was refused most often goes, once not one of them was taken for long."""
    suspects = suspected()
    suspects.add(SPAN, "boom")
    first, second = suspects
    for _ in range(REFUSALS - 1):
        suspects.refused(second, "boom")
        assert suspects.worst() is None
    suspects.refused(first, "boom")
    assert suspects.worst() is second
    suspects.cleared(second)
    suspects.refused(first, "boom")
    assert suspects.worst() is None
    assert list(suspects) == [first]
