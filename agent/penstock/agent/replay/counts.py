"""What a replay counts, of what was recorded and of what would have been."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Note(StrEnum):
    """What a replay could not use, or had to assume; the value is its sentence, for a number of loads."""

    ABORTED = "ended with their request before the failure was handled; left out"
    NO_OUTCOME = "waited and have no recorded end; left out"
    NO_REQUEST = "are recorded without the id of their request; left out"
    NOT_DECIDED = "failed in a way that no policy decides about (retried by the connector); left out"
    TRIED = "were kept from a quarantined peer; assumed to fail there at once, as the loads before them"
    LONGER = "were cut by a deadline and would have waited longer; assumed to reach the later deadline"
    ENDLESS = "were cut by a deadline that would not be there; how they would have ended is not known"
    GIVEN_UP = (
        "were given up or not made by a reflex that would not have; how they would have ended is not known"
    )
    REFLEX = "were given up or not made by a reflex, as here; what that has saved is not known"
    OWN = "would have been left to vLLM's own kv_load_failure_policy, or the connector, which is not known"
    TOKENS = "succeeded and would not have; how many tokens they brought is not recorded"
    IN_FLIGHT = "would have been cut in mid-transfer; they fail instead if their transfer cannot be cancelled"
    SUCCEEDED = "succeeded and would not have been made, or not have been waited for"
    COLLATERAL = "failed because another load did; assumed to be affected in the same way"


@dataclass
class Counts:
    """Remote loads by what became of them.

    Attributes:
        loads: all of the others but the waits: those that were loaded, recomputed or failed, or not known.
        unknown: it cannot be known what would have become of them.
        tokens_recomputed: prompt tokens that were computed again.
        items_recomputed: encoder outputs that were.
        waits_cut: loads that a deadline ended.
        not_tried: loads that were kept from a quarantined peer.
        by_reflex: loads that a reflex gave up or did not make, and that were computed here.
        waited_ns: the sum of all waits for remote state.

    """

    loads: int = 0
    loaded: int = 0
    recomputed: int = 0
    failed: int = 0
    unknown: int = 0
    tokens_recomputed: int = 0
    items_recomputed: int = 0
    waits_cut: int = 0
    not_tried: int = 0
    by_reflex: int = 0
    waited_ns: int = 0


@dataclass
class ReflexCounts:
    """What one reflex did, or would have done, and what that saves or costs.

    Times are the difference of what a load was recorded to take, with computing where it was recomputed, and of what it takes
    with the reflex. A load that was recorded to fail has none.

    Attributes:
        acts: it did; else it would have.
        asked: loads that it could have given up or left out; of the storm, losses that were recomputed.
        failed: loads that fail by it and did not.
        rescued: loads that failed and are computed here instead.
        tokens: that are computed here and were loaded; of the storm, those that are not computed.
        price_unknown: how often it was held back because what computing takes was not known; of the storm, how long requests queue.
        peer_unknown: how often it was because the peer's times were not.
        limited: how often it was by ``perMinute``.

    """

    acts: bool = False
    asked: int = 0
    times: int = 0
    saved_ns: int = 0
    lost_ns: int = 0
    failed: int = 0
    rescued: int = 0
    tokens: int = 0
    price_unknown: int = 0
    peer_unknown: int = 0
    limited: int = 0


@dataclass
class PeerTimes:
    """How often a peer was quarantined, and for how long in all."""

    times: int = 0
    total_ns: int = 0


class QuarantineTimes:
    """The quarantines of peers, from their changes in the order of time."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self.by_peer: dict[str, PeerTimes] = {}

    def on_change(self, peer: str, *, is_open: bool, now_ns: int) -> None:
        """Apply a change of a peer's state."""
        if is_open and peer not in self._since:
            self._since[peer] = now_ns
            self.by_peer.setdefault(peer, PeerTimes()).times += 1
        elif not is_open and peer in self._since:
            self.by_peer[peer].total_ns += max(0, now_ns - self._since.pop(peer))

    def end(self, now_ns: int) -> None:
        """End the window: what is still quarantined counts until here."""
        for peer in list(self._since):
            self.on_change(peer, is_open=False, now_ns=now_ns)


@dataclass
class Replayed:
    """What was, and what would have been, of one engine; its reflexes by their field."""

    was: Counts = field(default_factory=Counts)
    would: Counts = field(default_factory=Counts)
    peers_was: dict[str, PeerTimes] = field(default_factory=dict)
    peers_would: dict[str, PeerTimes] = field(default_factory=dict)
    notes: Counter[Note] = field(default_factory=Counter)
    reflexes: dict[str, ReflexCounts] = field(default_factory=dict)
