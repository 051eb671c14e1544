"""Rules about both ends of a transfer: suspect answers, weights, compatibility before traffic, speed, a peer that left."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.diagnosis import Confidence, VerdictKind
from penstock.agent.model import EngineKey
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

from tests.support.agent.batches import PEER, event
from tests.support.agent.diagnosed import DECODE, at, calm, decided, engine, failed, verdict_of

PREFILL = {"server": "prefill", "engine": "0"}
DECODES = {"server": "decode", "engine": "0"}


def _suspect(reason: int, number: int = 1, **fields: Any) -> list[admin.Suspect]:
    values = {
        "key": DECODES,
        "peer": {"address": PEER},
        "reasons": [reason],
        "evidence": ["it was so"],
        **fields,
    }
    return [admin.Suspect(request_id=f"d-{n}", peer_request_id=f"p-{n}", **values) for n in range(number)]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (events.SUSPECT_REASON_MISMATCH, "what they read is not what was sent"),
        (events.SUSPECT_REASON_FAILED_READ, "a read failed"),
        (events.SUSPECT_REASON_LATE_WRITE, "a peer wrote into blocks"),
        (events.SUSPECT_REASON_NAN, "there were NaNs"),
    ],
)
def test_answers_that_may_be_wrong(reason: int, words: str) -> None:
    """They come before a peer whose loads fail: a wrong answer is worse than none."""
    bad = [failed("bad", 60), decided("bad", 60)]
    causes = verdict_of([*calm(), *bad], suspects=_suspect(reason, 2)).causes
    assert [cause.kind for cause in causes] == ["answers_suspect", "peer_refuses"]
    cause = causes[0]
    assert cause.sentence.startswith(f"2 answers of engine decode/0 may be wrong: {words}")
    assert cause.peer == PEER
    assert "requests d-0, d-1" in cause.evidence[1].fact
    assert cause.commands[1] == "agentctl explain d-0"


def test_a_drill_makes_no_answer_suspect() -> None:
    """Nothing is wrong with it."""
    rehearsed = _suspect(events.SUSPECT_REASON_FAILED_READ, rehearsal=True)
    assert verdict_of(calm(), suspects=rehearsed).answer == VerdictKind.NOTHING_WRONG


def test_what_was_not_looked_for_is_said() -> None:
    """A search for suspects that ended early."""
    verdict = verdict_of(calm(), suspects_cut=True)
    assert verdict.answer == VerdictKind.NOTHING_WRONG
    assert any("not all answers that may be wrong were looked for" in each for each in verdict.missing)


def test_late_reads_name_the_answers() -> None:
    """The prefill side knows the read, the decode side the answer."""
    late = failed("p-0", 60, "unknown", mode=common.FAILURE_MODE_LATE_READ)
    causes = verdict_of([*calm(), late], suspects=_suspect(events.SUSPECT_REASON_LATE_READ)).causes
    assert [cause.kind for cause in causes] == ["late_reads"]
    assert causes[0].evidence[-1].fact == "computed from them: request d-0 of engine decode/0"


def test_late_reads_of_which_no_answer_is_wrong() -> None:
    """Their clients had left, for instance: only those of which that is not known are told."""
    late = [failed(f"p-{n}", 60, "unknown", mode=common.FAILURE_MODE_LATE_READ) for n in range(3)]
    cleared = {"p-0", "p-2"}
    (cause,) = verdict_of([*calm(), *late], cleared_late_reads=cleared).causes
    assert "1 answer may be wrong" in cause.sentence
    assert "request p-1 at prefill" in cause.evidence[1].fact
    assert not verdict_of([*calm(), *late], cleared_late_reads={*cleared, "p-1"}).causes


def _pair(**fields: Any) -> admin.Pair:
    values = {"key": DECODES, "peer": {"address": PEER}, "peer_key": PREFILL, "connected": True}
    return admin.Pair(**{**values, **fields})


def test_two_engines_with_different_weights() -> None:
    """No handshake fails; each answer that read the other's blocks may be wrong."""
    difference = {"fact": "weights", "value": "aaaa", "peer_value": "bbbb"}
    pair = _pair(weights=admin.PAIR_WEIGHTS_DIFFER, differences=[difference])
    others = [
        *_suspect(events.SUSPECT_REASON_OTHER_WEIGHTS, 2),
        *_suspect(events.SUSPECT_REASON_OTHER_WEIGHTS, 9, peer={"address": "other:1"}),
    ]
    cause, over = verdict_of(calm(), pairs=[pair], suspects=others).causes
    assert (cause.kind, cause.peer, cause.confidence) == ("weights_differ", PEER, Confidence.CERTAIN)
    assert (over.kind, over.peer, over.requests, bool(over.until)) == ("weights_differ", "other:1", 9, True)
    assert cause.sentence.endswith("have loaded different weights: 2 answers may be wrong")
    assert cause.requests == 2
    assert [each.fact for each in cause.evidence][:3] == [
        "weights aaaa and bbbb",
        "2 answers of the window read blocks of the other",
        "requests d-0, d-1",
    ]
    assert cause.commands[0] == "agentctl diff engine decode/0 prefill/0"
    assert cause.commands[2:] == ("agentctl get suspects --since 10m", "agentctl explain d-0")


@pytest.mark.parametrize(("fields", "ended"), [({"said_goodbye": True}, True), ({}, False)])
def test_weights_of_an_engine_that_is_away_may_still_differ(fields: dict[str, Any], ended: bool) -> None:
    """One that vanished may come back as it was; one that said goodbye does not."""
    away = engine("prefill", common.ROLE_PREFILL, connected=False, **fields)
    answers = _suspect(events.SUSPECT_REASON_OTHER_WEIGHTS, peer_key=PREFILL)
    causes = verdict_of(calm(), engines=[engine(), away], suspects=answers).causes
    (cause,) = (each for each in causes if each.kind == "weights_differ")
    assert bool(cause.until) == ended
    assert ("engine prefill/0 is not connected" in cause.evidence[-1].fact) != ended


def test_different_weights_without_a_suspect_answer() -> None:
    """What the rule counts is what the list of suspects names: none so far."""
    (cause,) = verdict_of(calm(), pairs=[_pair(weights=admin.PAIR_WEIGHTS_DIFFER)]).causes
    assert cause.sentence.endswith("answers will be wrong")
    assert (cause.requests, cause.confidence) == (0, Confidence.LIKELY)


def _apart(mine: str, theirs: str, **fields: Any) -> admin.Pair:
    difference = admin.FactDifference(
        fact="vllm_version", value=mine, peer_value=theirs, effect=admin.DIFFERENCE_EFFECT_FAILS
    )
    values = {
        "connected": False,
        "compatible": admin.PAIR_COMPATIBILITY_NO,
        "reason": f"vllm_version {mine}≠{theirs}",
        "differences": [difference],
    }
    return _pair(**{**values, **fields})


def test_a_pair_of_two_versions() -> None:
    """Before a request has been sent, in words; it may be a roll-out."""
    (cause,) = verdict_of(calm(), pairs=[_apart("0.32.0", "0.31.0")]).causes
    assert (cause.kind, cause.peer, cause.peers) == ("versions_mixed", "", (PEER,))
    assert cause.sentence == (
        "engines that are pairs run vLLM 0.31.0 and 0.32.0: NIXL exchanges no KV blocks between versions"
    )
    assert [each.fact for each in cause.evidence] == [
        "vLLM 0.31.0: engine prefill/0",
        "vLLM 0.32.0: engine decode/0",
        "1 pair of engines is of two versions",
    ]
    assert cause.alternatives[0].startswith("a roll-out that has not finished")
    (effect,) = cause.effects
    assert (effect.kind, effect.peer) == ("incompatible_pair", PEER)
    assert effect.sentence == (
        "engine decode/0 runs vLLM 0.32.0 and engine prefill/0 vLLM 0.31.0: NIXL exchanges no KV blocks between versions"
    )


def test_a_roll_out_that_mixes_versions_is_one_cause() -> None:
    """However many pairs there are; what has failed by it is its effect, and so are the blocks that nobody could read."""
    others = [{"server": f"prefill-{n}", "engine": "0"} for n in range(3)]
    pairs = [
        _apart("0.9.0", "0.31.0"),
        *(
            _apart("0.9.0", "0.31.0", peer={"address": f"10.0.0.{n}:5600"}, peer_key=each)
            for n, each in enumerate(others)
        ),
        _apart("0.9.0", "0.32.1", peer={}, peer_key={"server": "new", "engine": "0"}),
    ]
    refused = [failed(f"bad-{n}", 60, error_type=common.ERROR_TYPE_INCOMPATIBLE) for n in (1, 2)]
    (cause,) = verdict_of([*calm(), *refused], pairs=pairs).causes
    assert (cause.kind, len(cause.peers)) == ("versions_mixed", 4)
    assert "run vLLM 0.9.0, 0.31.0 and 0.32.1:" in cause.sentence
    assert "5 pairs of engines are of two versions" in cause.evidence[-1].fact
    kinds = [(each.kind, each.peer) for each in cause.effects]
    # No handshake of the engine whose address is not known has failed for sure.
    assert sorted(kinds) == [
        *(("incompatible_pair", f"10.0.0.{n}:5600") for n in range(3)),
        ("incompatible_peer", PEER),
    ]
    (failed_one,) = (each for each in cause.effects if each.kind == "incompatible_peer")
    assert failed_one.requests == 2
    # What its effect did to requests it did.
    assert (cause.requests, cause.failed, cause.confidence) == (2, failed_one.failed, failed_one.confidence)
    assert cause.since == failed_one.since
    assert cause.harm > failed_one.harm


def test_the_first_handshake_between_two_versions() -> None:
    """It fails at an address that the engine has told, before the pair is known to have met: one cause all the same."""
    refused = failed("bad", 60, error_type=common.ERROR_TYPE_INCOMPATIBLE)
    engines = [engine(), engine("prefill", common.ROLE_PREFILL, facts={"side_channel": PEER})]
    (cause,) = verdict_of(
        [*calm(), refused], pairs=[_apart("0.32.0", "0.31.0", peer={})], engines=engines
    ).causes
    assert (cause.kind, [each.kind for each in cause.effects]) == ("versions_mixed", ["incompatible_peer"])
    assert cause.requests == 1


def test_a_pair_that_will_not_shake_hands() -> None:
    """By the geometry of both; once a handshake has failed, that is the cause."""
    pair = _pair(
        connected=False,
        compatible=admin.PAIR_COMPATIBILITY_NO,
        reason="tensor_parallel_size 4≠2",
        geometry="TP4, 16-token blocks",
        peer_geometry="TP2, 16-token blocks",
    )
    (cause,) = verdict_of(calm(), pairs=[pair]).causes
    assert (cause.kind, cause.peer) == ("incompatible_pair", PEER)
    assert "tensor_parallel_size 4≠2" in cause.sentence
    assert [each.fact for each in cause.evidence] == [
        "engine decode/0: TP4, 16-token blocks",
        "engine prefill/0: TP2, 16-token blocks",
    ]
    bad = failed("bad", 60, error_type=common.ERROR_TYPE_INCOMPATIBLE)
    nowhere = _pair(compatible=admin.PAIR_COMPATIBILITY_NO, peer=None)
    for each in (pair, nowhere):
        kinds = [cause.kind for cause in verdict_of([*calm(), bad], pairs=[each]).causes]
        assert kinds == ["incompatible_peer"]
    assert [cause.kind for cause in verdict_of(calm(), pairs=[nowhere]).causes] == ["incompatible_pair"]
    # Of a peer that is no engine here, an old handshake is all that is known: its pod may have gone.
    gone = _pair(compatible=admin.PAIR_COMPATIBILITY_NO, peer_key=None)
    assert not verdict_of(calm(), pairs=[gone]).causes


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ({"usual_ratio": 0.01, "usual_bytes_per_second": 49e9, "usual_count": 40}, "1% of what is usual"),
        ({"siblings_ratio": 0.2}, "20% of the median of this engine's other peers"),
    ],
)
def test_a_pair_that_fell_back_to_a_slower_transport(ratios: dict[str, float], words: str) -> None:
    """Bytes a second of transfers of one size, and how the two move blocks."""
    speed = {"bytes_per_second": 0.5e9, "count": 12, "size_class": "1 MiB and more", **ratios}
    pair = _pair(speed=speed, transport="UCX tls=tcp (VRAM)")
    (cause,) = verdict_of(calm(), pairs=[pair]).causes
    assert (cause.kind, cause.peer) == ("slow_transfers", PEER)
    assert f"move 500.0 MB/s, {words}" in cause.sentence
    assert [each.fact for each in cause.evidence][-2:] == [
        "durations are times until the engine sees the end, and how often it looks is not known",
        "by UCX tls=tcp (VRAM)",
    ]
    # What a slow look would explain comes first, until it is known how often the engine looks.
    assert cause.confidence == Confidence.POSSIBLE
    assert cause.alternatives[0].startswith("its engine looks less often than before")
    (sure,) = verdict_of(calm(), pairs=[pair], look_seconds={DECODE: 0.001}).causes
    assert (sure.confidence, "looks every 1ms" in sure.evidence[-2].fact) == (Confidence.LIKELY, True)
    assert sure.alternatives[0].startswith("the transport fell back")
    for few in ({**speed, "count": 4}, {**speed, "size_class": "below 1 MiB"}):
        assert not verdict_of(calm(), pairs=[_pair(speed=few)]).causes
    # A peer that fails is told as that.
    log = [*calm(), failed("bad", 60)]
    assert [cause.kind for cause in verdict_of(log, pairs=[pair]).causes] == ["peer_refuses"]


@pytest.mark.parametrize(
    ("look", "kinds"),
    [
        # A transfer that is seen after a second may have taken no time, or a second less one look.
        (1.0, []),
        (2.0, []),
        (0.6, []),
        (0.1, ["slow_transfers"]),
        (0.0, ["slow_transfers"]),
    ],
)
def test_a_reader_that_looks_seldom(look: float, kinds: list[str]) -> None:
    """Transfers are slow only if they were so had they ended just after the look before."""
    windows = {"count": 50, "p50_seconds": 1.0}
    row = admin.PeerSummary(
        key=DECODES,
        peer={"address": PEER},
        transfers={"last_minute": windows, "hour_before": {"count": 50, "p50_seconds": 0.2}},
    )
    looks = {DECODE: look} if look else {}
    assert [each.kind for each in verdict_of(calm(), peers=[row], look_seconds=looks).causes] == kinds


@pytest.mark.parametrize("facts", [{"side_channel": PEER}, None], ids=["address", "away"])
def test_a_prefill_pod_that_was_drained_in_mid_transfer(facts: dict[str, str] | None) -> None:
    """Its own goodbye says why it reset the connection; the agent knows the addresses of those that are connected."""
    reset = failed("bad", 60, error_type=common.ERROR_TYPE_REMOTE_RESET, mode=common.FAILURE_MODE_TRANSFER)
    left = engine(
        "prefill",
        common.ROLE_PREFILL,
        connected=False,
        said_goodbye=True,
        facts=facts,
        last_seen={"seconds": at(55) // 10**9},
    )
    (cause,) = verdict_of([*calm(), reset], engines=[engine(), left]).causes
    assert cause.kind == "peer_resets"
    assert any(each.fact.startswith("engine prefill/0 said goodbye and ended") for each in cause.evidence)
    assert " and was stopped" in cause.sentence
    assert cause.alternatives[0].startswith("the router has not let go of it")


def _killed(address: str | None) -> dict[str, Any]:
    """Return that the EngineCore of a prefill engine vanished, which had *address*, if that is known."""
    lost = event("source_lost", time_ns=at(61), process="engine-core")
    facts = {"side_channel": address} if address else None
    gone = engine("prefill", common.ROLE_PREFILL, connected=False, facts=facts)
    return {"more": [(EngineKey("prefill", "0"), "prefill", lost)], "engines": [engine(), gone]}


@pytest.mark.parametrize(
    ("address", "kinds"),
    [
        (PEER, ["peer_refuses"]),
        (None, ["peer_refuses"]),
        ("other:1", ["engine_lost", "peer_refuses"]),
    ],
)
def test_a_prefill_pod_that_was_killed_is_one_cause(address: str | None, kinds: list[str]) -> None:
    """Its loss is evidence of the peer's failures; one with another address is a cause of its own."""
    verdict = verdict_of([*calm(), failed("bad", 60)], **_killed(address))
    assert [cause.kind for cause in verdict.causes] == kinds
    assert DECODE in verdict.causes[-1].engines


def test_of_two_peers_in_trouble_none_is_known_to_be_the_one_that_vanished() -> None:
    """The loss is a cause of its own then."""
    log = [*calm(), failed("bad", 60), failed("bad-2", 60, "b:1")]
    kinds = [cause.kind for cause in verdict_of(log, **_killed(None)).causes]
    assert sorted(kinds) == ["engine_lost", "peer_refuses", "peer_refuses"]


def _prefill(server: str, address: str, **facts: Any) -> admin.Engine:
    values = {"kv_connector": "NixlConnector", "kv_engine_id": "fixed", "side_channel": address, "role": 1}
    return engine(server, common.ROLE_PREFILL, facts={**values, **facts})


def test_engines_with_one_id_before_traffic() -> None:
    """Their facts are enough; answers that came of it are counted, whichever of the two was read."""
    engines = [engine(), _prefill("p", PEER), _prefill("q", "q:1")]
    (cause,) = verdict_of(calm(), engines=engines).causes
    assert (cause.kind, cause.peer, cause.confidence) == ("engine_id_shared", "", Confidence.CERTAIN)
    assert cause.sentence.startswith("engines p/0, q/0 have one connector engine id (fixed): ")
    assert [each.fact for each in cause.evidence][:2] == [
        f"engine p/0: side channel {PEER}",
        "engine q/0: side channel q:1",
    ]
    assert cause.commands == ("agentctl diff engine p/0 q/0", "agentctl get pairs -o wide")

    pair = _pair(other_addresses=[{"address": "q:1", "owner": common.ADDRESS_OWNER_OTHER}])
    suspects = _suspect(events.SUSPECT_REASON_OTHER_ENGINE, 2)
    (cause,) = verdict_of(calm(), engines=engines, pairs=[pair], suspects=suspects).causes
    assert cause.requests == 2
    assert cause.evidence[2].fact == "2 answers of the window may be wrong: requests d-0, d-1"
    assert cause.commands[0] == "agentctl get suspects --since 10m"


def test_an_engine_that_was_replaced_shares_no_id() -> None:
    """The one before is not connected."""
    gone = engine(
        "p", common.ROLE_PREFILL, connected=False, said_goodbye=True, facts=_prefill("p", PEER).facts
    )
    assert (
        verdict_of(calm(), engines=[engine(), gone, _prefill("q", "q:1")]).answer == VerdictKind.NOTHING_WRONG
    )


@pytest.mark.parametrize(
    ("owner", "confidence", "words"),
    [
        (
            common.ADDRESS_OWNER_OTHER,
            Confidence.CERTAIN,
            "have one connector engine id: engine decode/0 reads from",
        ),
        (common.ADDRESS_OWNER_UNSPECIFIED, Confidence.POSSIBLE, "who is there is not known"),
    ],
)
def test_an_id_that_requests_give_two_addresses(owner: int, confidence: Confidence, words: str) -> None:
    """The reader's agent alone knows it, of engines that it does not know."""
    other = {"address": "q:1", "owner": owner, "transfers": 3, "first_time_unix_nano": at(60)}
    pair = _pair(other_addresses=[other])
    pair.ClearField("peer_key")
    late = failed("p-0", 60, mode=common.FAILURE_MODE_LATE_READ)
    (cause,) = [
        each for each in verdict_of([*calm(), late], pairs=[pair]).causes if each.kind == "engine_id_shared"
    ]
    assert (cause.peer, cause.confidence, cause.since) == (PEER, confidence, at(60))
    assert words in cause.sentence
    assert cause.evidence[1].fact == f"3 loads read {PEER} instead"
    assert bool(cause.alternatives) == (confidence == Confidence.POSSIBLE)


def test_answers_of_an_id_that_is_shared_no_more() -> None:
    """They stay wrong."""
    suspects = _suspect(events.SUSPECT_REASON_OTHER_ENGINE, 2)
    for each in suspects:
        each.seen.FromNanoseconds(at(60))
    verdict = verdict_of(calm(), suspects=suspects)
    (cause,) = verdict.causes
    assert verdict.answer == VerdictKind.NOTHING_WRONG
    assert (cause.kind, cause.peer, cause.until, cause.requests) == ("engine_id_shared", PEER, at(60), 2)


@pytest.mark.parametrize(("least", "words"), [(0.001, ""), (0.9, "take 1.0s"), (0.6, "take at least 600ms")])
def test_transfers_whose_looks_are_told(least: float, words: str) -> None:
    """Slow by the shortest that they can have been, and said as that where they are little known."""
    window, bound = {"count": 50, "p50_seconds": 1.0}, {"count": 50, "p50_seconds": least}
    row = admin.PeerSummary(
        key=DECODES,
        peer={"address": PEER},
        transfers={"last_minute": window, "hour_before": {"count": 50, "p50_seconds": 0.1}},
        transfers_at_least={"last_minute": bound},
    )
    causes = verdict_of(calm(), peers=[row]).causes
    assert [words in each.sentence for each in causes] == ([True] if words else [])
    assert all(each.confidence == Confidence.LIKELY for each in causes)


def test_a_pair_whose_looks_are_told() -> None:
    """The sentence says the most that it can move."""
    speed = {
        "bytes_per_second": 1e6,
        "bytes_per_second_at_most": 4e6,
        "count": 12,
        "size_class": "1 MiB and more",
        "usual_ratio": 0.1,
    }
    (cause,) = verdict_of(calm(), pairs=[_pair(speed=speed)]).causes
    assert "move at most 4.0 MB/s, 10% of what is usual" in cause.sentence
    assert cause.confidence == Confidence.LIKELY
