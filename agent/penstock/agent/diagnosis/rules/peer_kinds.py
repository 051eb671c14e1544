"""What a peer in trouble does, by its most frequent error: the kind of its cause, its words, and what else it could be. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.diagnosis.facts import (
    KV,
)
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from penstock.agent.diagnosis.facts import PeerTrouble


# Failures that end no load.
_HARMLESS = frozenset({common.FAILURE_MODE_NOTIFICATION, common.FAILURE_MODE_RELEASE})


class PeerKind(NamedTuple):
    """What a peer does, by its most frequent error.

    Attributes:
        says: continues "peer 10.0.0.7:5600 …".
        said: the same once it has ended.
        alternatives: what else it could be.

    """

    kind: str
    says: str
    said: str
    alternatives: tuple[str, ...]


_OTHER_SIDE = "the network of the engine that reports it, if its other peers fail too: agentctl get peers"
REFUSES = PeerKind(
    "peer_refuses",
    "refuses connections",
    "refused connections",
    (
        "the pod restarts and will be back: kubectl get pods shows its restarts",
        "the router sends an address that is no engine's any more: compare it with the pods' addresses",
    ),
)
_KINDS: Final[dict[int, PeerKind]] = {
    common.ERROR_TYPE_REFUSED: REFUSES,
    common.ERROR_TYPE_REMOTE_RESET: PeerKind(
        "peer_resets",
        "resets connections in mid-transfer",
        "reset connections in mid-transfer",
        (
            "the peer was stopped or restarted while it was read: see the events of its own engine",
            "its fabric connection is broken although the process runs: its transfers then fail until it restarts",
        ),
    ),
    common.ERROR_TYPE_TIMEOUT: PeerKind(
        "peer_times_out",
        "does not answer in time",
        "did not answer in time",
        (
            "the peer's process is stopped or overloaded",
            _OTHER_SIDE,
            "a deadline of a policy that is too short",
        ),
    ),
    common.ERROR_TYPE_CORRUPT: PeerKind(
        "peer_corrupts",
        "sends data that do not match",
        "sent data that did not match",
        ("a defect of memory, network card or driver on either side",),
    ),
    common.ERROR_TYPE_EVICTED: PeerKind(
        "peer_evicts",
        "no longer has what is asked for",
        "no longer had what was asked for",
        ("its cache is too small for the load", "requests come too late: see how long they queue"),
    ),
    common.ERROR_TYPE_WRONG_ENGINE: PeerKind(
        "wrong_engine_at_address",
        "is the address of another engine than requests name",
        "was the address of another engine than requests named",
        (
            "an engine advertises an address that is not its own: VLLM_NIXL_SIDE_CHANNEL_HOST is localhost unless it is set to the pod's address",
            "the engine there was restarted, and the router still names the one before",
        ),
    ),
    common.ERROR_TYPE_DECODE: PeerKind(
        "peer_speaks_otherwise",
        "answers with what is not understood",
        "answered with what was not understood",
        ("another version of vLLM or of the connector", "an address that is not a side channel's port"),
    ),
}
_FAILS = PeerKind(
    "peer_fails",
    "fails",
    "failed",
    ("a driver or library fault on this side, if other peers fail too: agentctl get peers", _OTHER_SIDE),
)
_SLOW = PeerKind(
    "peer_slow",
    "is slow",
    "was slow",
    (
        "the peer is overloaded: its prefill queue is then long, and its other readers wait too",
        "the network between them",
        "the transfers are as fast as ever and the handshakes wait: agentctl explain REQUEST_ID has the parts",
    ),
)
_ENCODER_KINDS: Final = {"peer_slow": "encoder_slow"}
_ENCODER_FAILS = "encoder_fails"


def name_of(kind: PeerKind, channel: int) -> str:
    """Return the kind of the cause: of the EC channel an encoder's."""
    return kind.kind if channel == KV else _ENCODER_KINDS.get(kind.kind, _ENCODER_FAILS)


def kind_of(trouble: PeerTrouble) -> PeerKind:
    """Return what the peer does, by the most frequent error of its failures; slow where it has none."""
    counted = [each for each in trouble.failures if each.mode not in _HARMLESS] or trouble.failures
    if not counted and not trouble.collateral:
        return _SLOW
    # A tie goes by the number, so that the same facts give the same word.
    types = Counter(each.error_type for each in counted)
    most = min(types, key=lambda each: (-types[each], each), default=common.ERROR_TYPE_TIMEOUT)
    return _KINDS.get(most, _FAILS)
