"""A relay joins both sides of an answer that may be wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.relay import merged_sides
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey
from penstock.proto.v1.events_pb2 import SUSPECT_REASON_LATE_READ, SUSPECT_REASON_NAN

LATE, NAN = SUSPECT_REASON_LATE_READ, SUSPECT_REASON_NAN


def half(owner: str, seconds: int = 5) -> admin.Suspect:
    """Return what the owner of blocks says."""
    return admin.Suspect(
        peer_key=EngineKey(engine="0"),
        peer_request_id=owner,
        reasons=[LATE],
        evidence=["late"],
        missing="the other side",
        seen={"seconds": seconds},
    )


def answer(name: str, owner: str, *reasons: int, cleared: bool = False, seconds: int = 9) -> admin.Suspect:
    """Return what the reader's agent says."""
    return admin.Suspect(
        key=EngineKey(engine="0"),
        request_id=name,
        peer_request_id=owner,
        reasons=reasons,  # type: ignore[arg-type]
        evidence=[str(reason) for reason in reasons],
        cleared=cleared,
        seen={"seconds": seconds},
    )


def join(
    own: dict[str, list[admin.Suspect]], readers: dict[str, list[admin.Suspect]], limit: int = 0
) -> admin.ListSuspectsResponse:
    """Join as the relay does."""
    first = [(name, admin.ListSuspectsResponse(suspects=found)) for name, found in own.items()]
    late = merged_sides.halves(first)
    second = [(name, admin.ListSuspectsResponse(suspects=found)) for name, found in readers.items()]
    merged_sides.qualify_suspects(first)
    merged_sides.qualify_suspects(second)
    return merged_sides.joined(first, late, second, admin.ListSuspectsRequest(limit=limit))


def test_a_half_finds_its_answer() -> None:
    """The engine that answered and the one whose blocks were read are both named, by their agents."""
    (found,) = join({"prefill-1": [half("kept")]}, {"decode-3": [answer("cmpl", "kept", LATE)]}).suspects
    assert (found.key.server, found.request_id) == ("decode-3", "cmpl")
    assert (found.peer_key.server, found.peer_request_id) == ("prefill-1", "kept")
    assert (found.missing, found.seen.seconds) == ("", 5)


def test_one_answer_is_one_row() -> None:
    """What the reader's agent suspects for a reason of its own, and the late read, are one suspect."""
    own = {"decode-3": [answer("cmpl", "kept", NAN)], "prefill-1": [half("kept")]}
    (found,) = join(own, {"decode-3": [answer("cmpl", "kept", LATE, NAN)]}).suspects
    assert sorted(found.reasons) == [LATE, NAN]
    assert len(found.evidence) == 2
    assert found.peer_key.server == "prefill-1"


def test_what_was_not_delivered_is_no_suspect() -> None:
    """A reader that failed or computed again clears the half; a half without a reader stays, and says so."""
    own = {"prefill-1": [half("kept"), half("lost")]}
    (found,) = join(own, {"decode-3": [answer("cmpl", "kept", cleared=True)]}).suspects
    assert (found.peer_request_id, found.request_id, found.missing) == ("lost", "", "the other side")


@given(
    st.dictionaries(st.integers(0, 8), st.sampled_from(["read", "cleared", "unknown"]), max_size=8),
    st.integers(0, 5),
)
def test_every_half_is_accounted_for(owners: dict[int, str], limit: int) -> None:
    """Each half is an answer, or stays, or is cleared; the newest are shown."""
    own = {"p": [half(str(number), number) for number in owners]}
    readers = {
        "d": [
            answer(
                f"r{number}", str(number), *([] if what == "cleared" else [LATE]), cleared=what == "cleared"
            )
            for number, what in owners.items()
            if what != "unknown"
        ]
    }
    response = join(own, readers, limit)
    expected = sorted((number for number, what in owners.items() if what != "cleared"), reverse=True)
    shown = [int(each.peer_request_id) for each in response.suspects]
    assert shown == expected[: limit or 100]
    assert response.truncated == (len(expected) > (limit or 100))
