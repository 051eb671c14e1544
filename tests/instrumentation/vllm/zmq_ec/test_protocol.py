"""The messages between consumer and producer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.zmq_ec import wire

TAGS = st.integers(0, 2**64 - 1)
CRCS = st.integers(0, 2**32 - 1)
MODELS = st.binary(min_size=16, max_size=16)
ITEMS = st.text(min_size=1).filter(wire.item_fits)


@st.composite
def contents(draw: st.DrawFn) -> wire.Content:
    """Any content that can be a tensor."""
    rows, width = draw(st.integers(1, 1 << 12)), draw(st.integers(1, 1 << 12))
    dtype = draw(st.sampled_from(sorted(wire.DTYPE_BYTES)))
    return wire.Content(draw(CRCS), rows * width * wire.DTYPE_BYTES[dtype], rows, width, dtype)


REQUESTS = st.one_of(
    st.builds(wire.Probe, TAGS, MODELS, ITEMS),
    st.builds(wire.Fetch, TAGS, MODELS, CRCS, TAGS, st.integers(1, wire.CHUNK_MAX), ITEMS),
)
ANSWERS = st.one_of(
    st.builds(wire.Have, TAGS, MODELS, contents()),
    st.builds(wire.Miss, TAGS),
    st.builds(wire.Chunk, TAGS, CRCS, TAGS, CRCS),
    st.builds(wire.Refused, TAGS, st.sampled_from(wire.Reason), st.text(max_size=50)),
)


@given(REQUESTS)
def test_requests_come_back_as_they_were(message: wire.Request) -> None:
    """Encoding loses nothing, and a producer takes no frame that is longer than it lets in."""
    frame = wire.encode(message)
    assert wire.decode_request(frame) == message
    assert len(frame) <= wire.HEADER_MAX


@given(ANSWERS)
def test_answers_come_back_as_they_were(message: wire.Answer) -> None:
    """Encoding loses nothing."""
    assert wire.decode_answer(wire.encode(message)) == message


@given(st.binary(max_size=wire.HEADER_MAX + 10))
def test_garbage_is_an_error_and_nothing_else(frame: bytes) -> None:
    """Whatever comes, decoding answers or raises a WireError."""
    for decode in (wire.decode_request, wire.decode_answer):
        try:
            found: object = decode(frame)
        except wire.WireError as error:
            found = str(error)
        assert found


@given(st.one_of(REQUESTS, ANSWERS), st.data())
def test_frames_with_one_byte_changed(message: wire.Request | wire.Answer, data: st.DataObject) -> None:
    """A frame that is nearly right is a message of the right kind, or an error."""
    frame = bytearray(wire.encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    for decode in (wire.decode_request, wire.decode_answer):
        try:
            found = decode(bytes(frame))
        except wire.WireError:
            continue
        if isinstance(found, wire.Have):
            assert not found.content.problem()
        if isinstance(found, (wire.Probe, wire.Fetch)):
            assert wire.item_fits(found.item)


def test_another_version_is_named_with_the_tag() -> None:
    """So that the answer reaches whoever asked."""
    frame = bytearray(wire.encode(wire.Probe(7, bytes(16), "a")))
    frame[2] = 2
    with pytest.raises(wire.WireError, match="version 2") as caught:
        wire.decode_request(bytes(frame))
    assert caught.value.reason is wire.Reason.VERSION
    assert caught.value.tag == 7


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (wire.Content(0, 4, 1, 1, "complex64"), "complex64"),
        (wire.Content(0, 4, 0, 1, "float32"), "0 x 1"),
        (wire.Content(0, 4, 1, wire.WIDTH_MAX + 1, "float32"), "too large"),
        (wire.Content(0, 5, 1, 1, "float32"), "5 bytes are not"),
        (wire.Content(0, 2, 1, 1, "float32"), "2 bytes are not"),
    ],
)
def test_contents_that_are_no_tensor(content: wire.Content, why: str) -> None:
    """The header says what would be wrong before anything is moved."""
    assert why in content.problem()


@pytest.mark.parametrize("length", [0, wire.CHUNK_MAX + 1])
def test_chunks_of_a_wrong_size_are_not_asked_for(length: int) -> None:
    """A producer sends no more than a chunk at once."""
    with pytest.raises(wire.WireError, match="chunk") as caught:
        wire.decode_request(wire.encode(wire.Fetch(1, bytes(16), 0, 0, length, "a")))
    assert caught.value.reason is wire.Reason.TOO_LARGE


@pytest.mark.parametrize(("item", "fits"), [("a", True), ("", False), ("x" * 513, False), ("\ud800", False)])
def test_names_that_clients_choose(item: str, fits: bool) -> None:
    """An item whose name cannot travel is not asked for."""
    assert wire.item_fits(item) is fits
