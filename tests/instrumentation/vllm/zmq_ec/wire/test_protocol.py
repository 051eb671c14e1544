"""The messages between consumer and producer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.vllm.zmq_ec.wire import protocol

TAGS = st.integers(0, 2**64 - 1)
CRCS = st.integers(0, 2**32 - 1)
MODELS = st.binary(min_size=16, max_size=16)
ITEMS = st.text(min_size=1).filter(protocol.item_fits)


@st.composite
def contents(draw: st.DrawFn) -> protocol.Content:
    """Any content that can be a tensor."""
    rows, width = draw(st.integers(1, 1 << 12)), draw(st.integers(1, 1 << 12))
    dtype = draw(st.sampled_from(sorted(protocol.DTYPE_BYTES)))
    shape = (rows * width * protocol.DTYPE_BYTES[dtype], rows, width, dtype)
    if draw(st.booleans()):
        return protocol.Content.of_fingerprint(draw(MODELS), *shape)
    return protocol.Content(draw(CRCS), *shape)


REQUESTS = st.one_of(
    st.builds(protocol.Probe, TAGS, MODELS, ITEMS, st.booleans()),
    st.builds(protocol.Fetch, TAGS, MODELS, CRCS, TAGS, st.integers(1, protocol.CHUNK_MAX), ITEMS),
    st.builds(protocol.Attach, TAGS, MODELS, MODELS),
    st.builds(protocol.Taken, TAGS, MODELS, TAGS, ITEMS),
)
ANSWERS = st.one_of(
    st.builds(protocol.Have, TAGS, MODELS, contents()),
    st.builds(protocol.Miss, TAGS),
    st.builds(protocol.Chunk, TAGS, CRCS, TAGS, CRCS),
    st.builds(protocol.Area, TAGS, CRCS, CRCS, TAGS, MODELS),
    st.builds(protocol.Refused, TAGS, st.sampled_from(protocol.Reason), st.text(max_size=50)),
)


@given(REQUESTS)
def test_requests_come_back_as_they_were(message: protocol.Request) -> None:
    """Encoding loses nothing, and a producer takes no frame that is longer than it lets in."""
    frame = protocol.encode(message)
    assert protocol.decode_request(frame) == message
    assert len(frame) <= protocol.HEADER_MAX


@given(ANSWERS)
def test_answers_come_back_as_they_were(message: protocol.Answer) -> None:
    """Encoding loses nothing."""
    assert protocol.decode_answer(protocol.encode(message)) == message


@given(st.binary(max_size=protocol.HEADER_MAX + 10))
def test_garbage_is_an_error_and_nothing_else(frame: bytes) -> None:
    """Whatever comes, decoding answers or raises a WireError."""
    for decode in (protocol.decode_request, protocol.decode_answer):
        try:
            found: object = decode(frame)
        except protocol.WireError as error:
            found = str(error)
        assert found


@given(st.one_of(REQUESTS, ANSWERS), st.data())
def test_frames_with_one_byte_changed(
    message: protocol.Request | protocol.Answer, data: st.DataObject
) -> None:
    """A frame that is nearly right is a message of the right kind, or an error."""
    frame = bytearray(protocol.encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    for decode in (protocol.decode_request, protocol.decode_answer):
        try:
            found = decode(bytes(frame))
        except protocol.WireError:
            continue
        if isinstance(found, protocol.Have):
            assert not found.content.problem()
        if isinstance(found, (protocol.Probe, protocol.Fetch)):
            assert protocol.item_fits(found.item)


def test_another_version_is_named_with_the_tag() -> None:
    """The answer has the request's number, so that it reaches the caller."""
    frame = bytearray(protocol.encode(protocol.Probe(7, bytes(16), "a")))
    frame[2] = 2
    with pytest.raises(protocol.WireError, match="version 2") as caught:
        protocol.decode_request(bytes(frame))
    assert caught.value.reason is protocol.Reason.VERSION
    assert caught.value.tag == 7


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (protocol.Content(0, 4, 1, 1, "complex64"), "complex64"),
        (protocol.Content(0, 4, 0, 1, "float32"), "0 x 1"),
        (protocol.Content(0, 4, 1, protocol.WIDTH_MAX + 1, "float32"), "too large"),
        (protocol.Content(0, 5, 1, 1, "float32"), "5 bytes are not"),
        (protocol.Content(0, 2, 1, 1, "float32"), "2 bytes are not"),
    ],
)
def test_contents_that_are_no_tensor(content: protocol.Content, why: str) -> None:
    """The header says what would be wrong before anything is moved."""
    assert why in content.problem()


@pytest.mark.parametrize("length", [0, protocol.CHUNK_MAX + 1])
def test_chunks_of_a_wrong_size_are_not_asked_for(length: int) -> None:
    """A producer sends no more than a chunk at once."""
    with pytest.raises(protocol.WireError, match="chunk") as caught:
        protocol.decode_request(protocol.encode(protocol.Fetch(1, bytes(16), 0, 0, length, "a")))
    assert caught.value.reason is protocol.Reason.TOO_LARGE


@pytest.mark.parametrize(("item", "fits"), [("a", True), ("", False), ("x" * 513, False), ("\ud800", False)])
def test_names_that_clients_choose(item: str, fits: bool) -> None:
    """An item whose name cannot travel is not asked for."""
    assert protocol.item_fits(item) is fits
