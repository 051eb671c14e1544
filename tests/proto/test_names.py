"""The words that enum values go by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.proto.names import label, number, words
from penstock.proto.v1.common_pb2 import (
    FAILURE_MODE_LATE_READ,
    Channel,
    ErrorType,
    FailureMode,
    Outcome,
    Role,
)

ENUMS = (Channel, ErrorType, FailureMode, Outcome, Role)


@pytest.mark.parametrize(
    ("enum", "value", "word"),
    [
        (FailureMode, FAILURE_MODE_LATE_READ, "late_read"),
        (Channel, 0, "unspecified"),
        (Role, 2, "decode"),
        (ErrorType, 999, "unknown"),
    ],
)
def test_label(enum, value: int, word: str) -> None:
    """A value's word is its name without the prefix; a newer peer's is unknown."""
    assert label(enum, value) == word


@given(st.data())
def test_number_undoes_label(data: st.DataObject) -> None:
    """Every word leads back to its value."""
    enum = data.draw(st.sampled_from(ENUMS))
    word = data.draw(st.sampled_from(words(enum)))

    assert label(enum, number(enum, word)) == word


@pytest.mark.parametrize("word", ["KV", "kvv", "", "unknown"])
def test_number_names_the_words_there_are(word: str) -> None:
    """A wrong word is refused with the right ones."""
    with pytest.raises(ValueError, match=r"is not one of kv, ec, eplb$") as caught:
        number(Channel, word)

    assert repr(word) in str(caught.value)


def test_words_leave_the_zero_value_out() -> None:
    """People choose among real values."""
    assert words(Role) == ["prefill", "decode", "encoder", "both"]
