"""The answer of many agents is that of one agent with all engines."""

from __future__ import annotations

from collections import Counter
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.badness import badness
from penstock.agent.relay import merged_answers
from penstock.agent.relay.asking import engines_of, for_agent
from penstock.agent.relay.merged_answers import own_key, own_selector, qualify
from penstock.agent.relay.merged_peers import merge_peers
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey

NAMES = ("a", "b", "c")
split = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 30)), max_size=30)


def _parts(items: list[tuple[str, Any]], answer: Any) -> list[tuple[str, Any]]:
    """Return an answer for each agent with the items that are its own."""
    return [(name, answer([item for owner, item in items if owner == name])) for name in NAMES]


@given(
    split, st.integers(0, 12), st.sampled_from(["", "age", "time", "duration", "wait", "ttft"]), st.booleans()
)
def test_requests_are_sorted_and_cut_as_those_of_one(
    items: list[tuple[str, int]], limit: int, sort: str, slow: bool
) -> None:
    """Those that stay are the newest or slowest of all; their order is what is asked for."""

    def answer(seconds: list[int]) -> admin.ListRequestsResponse:
        return admin.ListRequestsResponse(
            requests=[
                admin.RequestSummary(
                    request_id=str(each),
                    since=Timestamp(seconds=each),
                    duration={"seconds": each},
                    wait={"seconds": each},
                    time_to_first_token={"seconds": each},
                )
                for each in seconds
            ]
        )

    asked = admin.ListRequestsRequest(limit=limit, sort=sort, slow=slow)
    merged = merged_answers.requests(_parts(items, answer), asked)
    # Newest first and slowest first is the same here: each number is time and duration.
    most = limit or 100
    kept = sorted((number for _, number in items), reverse=True)[:most]
    assert sorted((int(each.request_id) for each in merged.requests), reverse=True) == kept
    assert merged.truncated == (len(items) > most)
    shown = [int(each.request_id) for each in merged.requests]
    assert shown == sorted(shown, reverse=sort != "age")
    assert all(each.key.server in NAMES for each in merged.requests)


@given(split, st.booleans())
def test_queues_are_counted_as_those_of_one(items: list[tuple[str, int]], queued: bool) -> None:
    """By reason, with the oldest of each; engines of which nothing is known are named as the fleet knows them."""

    def answer(seconds: list[int]) -> admin.ListRequestsResponse:
        return admin.ListRequestsResponse(
            requests=[
                admin.RequestSummary(request_id=str(each), since=Timestamp(seconds=each)) for each in seconds
            ],
            waiting=[
                {"reason": each % 4, "count": 1, "oldest_start_time_unix_nano": each} for each in seconds
            ],
            running=len(seconds),
            unnamed_queued=1,
            unknown_queues=[EngineKey(engine="0")],
        )

    merged = merged_answers.requests(_parts(items, answer), admin.ListRequestsRequest(queued=queued))
    assert {row.reason: row.count for row in merged.waiting} == Counter(each % 4 for _, each in items)
    for row in merged.waiting:
        assert row.oldest_start_time_unix_nano == min(each for _, each in items if each % 4 == row.reason)
    assert (merged.running, merged.unnamed_queued) == (len(items), len(NAMES))
    assert [each.server for each in merged.unknown_queues] == list(NAMES)
    shown = [int(each.request_id) for each in merged.requests]
    assert shown == sorted(shown, reverse=not queued)


@given(split, st.integers(0, 12))
def test_events_are_the_newest_of_all(items: list[tuple[str, int]], limit: int) -> None:
    """Oldest first, each with its agent, and the oldest are cut."""

    def answer(times: list[int]) -> admin.ListEventsResponse:
        return admin.ListEventsResponse(
            events=[admin.LoggedEvent(batch=each, event={"time_unix_nano": each}) for each in sorted(times)]
        )

    merged = merged_answers.events(_parts(items, answer), admin.ListEventsRequest(limit=limit))
    most = limit or 100
    times = [each.event.time_unix_nano for each in merged.events]
    assert times == sorted(number for _, number in items)[-most:]
    assert merged.truncated == (len(items) > most)
    assert all(each.agent == each.key.server for each in merged.events)


@given(split)
def test_peers_come_worst_first(items: list[tuple[str, int]]) -> None:
    """The order is by condition, over all agents."""

    def answer(numbers: list[int]) -> admin.ListPeersResponse:
        conditions = sorted((number % 12 for number in numbers), key=badness, reverse=True)
        return admin.ListPeersResponse(
            peers=[admin.PeerSummary(condition=each) for each in conditions],  # type: ignore[arg-type]
            left_out=len(numbers),
        )

    merged = merge_peers(_parts(items, answer), admin.ListPeersRequest())
    shown = [badness(peer.condition) for peer in merged.peers]
    assert shown == sorted((badness(number % 12) for _, number in items), reverse=True)
    assert merged.left_out == len(items)


@given(split)
def test_a_policy_is_a_row_for_each_content(items: list[tuple[str, int]]) -> None:
    """Engines are summed over the agents that have the same; another content is a row of its own."""

    def answer(numbers: list[int]) -> admin.ListPoliciesResponse:
        return admin.ListPoliciesResponse(
            policies=[
                admin.Policy(name="p", manifest_json=str(number), engines_selected=number, generation=number)
                for number in sorted(set(numbers))
            ]
        )

    merged = merged_answers.policies(_parts(items, answer), admin.ListPoliciesRequest())
    expected: dict[str, int] = {}
    for _, number in {*items}:
        expected[str(number)] = expected.get(str(number), 0) + number
    assert {each.manifest_json: each.engines_selected for each in merged.policies} == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_a_trace_has_parents_before_children(edges: list[tuple[int, int]]) -> None:
    """Each span comes once, also where two sides have it, or where spans are each other's parents."""
    sides = [
        (
            name,
            admin.Trace(
                trace_id="t",
                spans=[
                    admin.Span(span_id=str(child), parent_span_id=str(parent) if parent != child else "")
                    for child, parent in own
                ],
            ),
        )
        for name, own in (("a", edges[::2]), ("b", edges[1::2]))
    ]
    first: dict[str, str] = {}
    for _, side in sides:
        for span in side.spans:
            first.setdefault(span.span_id, span.parent_span_id)
    merged = merged_answers.trace(sides)
    shown = [span.span_id for span in merged.spans]
    assert sorted(shown) == sorted(first)
    for number, span in enumerate(merged.spans):
        if span.parent_span_id in shown[number + 1 :]:
            assert _in_a_circle(span.span_id, first), f"{span.span_id} comes before its parent"


def _in_a_circle(span: str, parents: dict[str, str]) -> bool:
    seen: set[str] = set()
    while span in parents and span not in seen:
        seen.add(span)
        span = parents[span]
    return span in seen


def test_what_each_agent_replays_is_one_answer() -> None:
    """Engines by their agent's name; what was read is summed, and cut if it was anywhere."""

    def answer(entries: int, *, truncated: bool) -> admin.WhatIfResponse:
        engine = admin.WhatIfEngine(key=EngineKey(engine="0"), would=admin.WhatIfCounts(failed=entries))
        return admin.WhatIfResponse(engines=[engine], entries=entries, truncated=truncated)

    parts = [("a", answer(3, truncated=False)), ("b", answer(4, truncated=True))]
    merged = merged_answers.what_if(parts, admin.WhatIfRequest())
    assert [(each.key.server, each.would.failed) for each in merged.engines] == [("a", 3), ("b", 4)]
    assert (merged.entries, merged.truncated) == (7, True)


def test_progress_is_done_when_all_agents_are() -> None:
    """An agent that does not answer is a row, and nothing is done then."""
    done = admin.Rollout(done=True, engines=[admin.EngineRollout(key=EngineKey(engine="0"))])
    assert merged_answers.delivery([("a", done), ("b", done)]).done
    assert not merged_answers.delivery([("a", done), ("b", admin.Rollout())]).done
    missing = merged_answers.delivery([("a", done)], missing=[("b", "no answer in 2 s")])
    assert not missing.done
    assert [engine.key.server for engine in missing.engines] == ["a", "b"]
    # What an agent said is not changed: it is merged again with the next.
    assert done.engines[0].key.server == ""


def test_the_clocks_are_compared() -> None:
    """With two sides, how far their clocks are apart and how exact that is; with one, nothing."""
    sides = [("a", admin.Explanation(sentences=["One."])), ("b", admin.Explanation(sentences=["Two."]))]
    clocks = {"a": (0.010, 0.001), "b": (0.250, 0.003)}
    merged = merged_answers.explanation(sides, clocks.__getitem__)
    assert list(merged.sentences) == [
        "a: One.",
        "b: Two.",
        "The clock of b is 240.0 ms ahead of that of a (±2.0 ms).",
    ]
    near = merged_answers.explanation(sides, {"a": (0.0, 0.004), "b": (0.001, 0.004)}.__getitem__)
    assert near.sentences[-1] == "The clocks of a and b agree (±4.0 ms)."
    assert list(merged_answers.explanation(sides[:1], clocks.__getitem__).sentences) == ["One."]


@given(
    st.sampled_from(["a", "a.b", "10.0.0.1:9465"]), st.sampled_from(["", "s", "s/t"]), st.sampled_from("01")
)
def test_a_name_goes_there_and_back(agent: str, server: str, engine: str) -> None:
    """The agent gets its own key back; no other agent does."""
    key = EngineKey(server=server, engine=engine)
    qualify(key, agent)
    assert own_key(key, agent) == EngineKey(server=server, engine=engine)
    assert own_key(key, agent + "x") is None


def test_a_request_goes_to_the_agents_of_its_engines() -> None:
    """Without names to all; with names to their agents, each with its own."""
    named = admin.EngineSelector(
        engines=[EngineKey(server="a", engine="0"), EngineKey(server="b/s", engine="1")]
    )
    assert own_selector(admin.EngineSelector(labels="x=y"), "a") == admin.EngineSelector(labels="x=y")
    asked = admin.ListEnginesRequest(selector=named, state="connected")
    to_b = for_agent(asked, "b")
    assert list(to_b.selector.engines) == [EngineKey(server="s", engine="1")]
    assert to_b.state == "connected"
    assert for_agent(asked, "c") is None
    # The request itself stays as it is, for the next agent.
    assert len(asked.selector.engines) == 2
    effective = admin.GetEffectivePolicyRequest(key=EngineKey(server="a", engine="0"))
    assert for_agent(effective, "a").key == EngineKey(engine="0")
    assert for_agent(effective, "b") is None
    assert engines_of(asked) == "a/0, b/s/1"
    assert engines_of(effective) == "a/0"
    assert engines_of(admin.ListDrillsRequest()) == ""


def _diagnosis(*causes: tuple[str, str, float], verdict: int = 3) -> admin.Diagnosis:
    return admin.Diagnosis(
        verdict=verdict,  # type: ignore[arg-type]
        sentence="as it is",
        engines=1,
        causes=[
            admin.DiagnosedCause(
                kind=kind,
                peer=peer,
                harm=harm,
                requests=1,
                sentence=f"{kind} {harm}",
                engines=[EngineKey(server="", engine="0")],
                evidence=[admin.DiagnosisEvidence(fact="seen")],
            )
            for kind, peer, harm in causes
        ],
    )


def test_causes_about_one_peer_are_one() -> None:
    """Their harm adds up, so what many see a little comes before what one sees more; their engines are named."""
    parts = [
        ("a", _diagnosis(("peer_slow", "p:1", 4.0), ("paused", "", 9.0))),
        ("b", _diagnosis(("peer_slow", "p:1", 6.0))),
        ("c", _diagnosis(verdict=1)),
    ]
    merged = merged_answers.diagnosis(parts, admin.DiagnoseRequest())
    assert [(cause.kind, cause.harm, cause.agents) for cause in merged.causes] == [
        ("peer_slow", 10.0, 2),
        ("paused", 9.0, 1),
    ]
    assert [key.server for key in merged.causes[0].engines] == ["a", "b"]
    assert "seen by 2 of 3 agents" in merged.sentence
    assert (merged.verdict, merged.engines) == (admin.DIAGNOSIS_VERDICT_CAUSES, 3)


def test_causes_of_one_agent_are_its_own() -> None:
    """Those of two engines stay two; those about one peer are one, seen by one agent."""
    answer = _diagnosis(("leases_expire", "", 4.0), ("leases_expire", "", 3.0), ("pinned_blocks", "p:1", 2.0))
    answer.causes[1].engines[0].engine = "1"
    answer.causes.append(answer.causes[2])
    merged = merged_answers.diagnosis([("a", answer)], admin.DiagnoseRequest())
    assert [(cause.sentence, cause.agents, len(cause.engines)) for cause in merged.causes] == [
        ("leases_expire 4.0", 1, 1),
        ("pinned_blocks 2.0 (the worst of 2, on 1 engine)", 1, 1),
        ("leases_expire 3.0", 1, 1),
    ]


def test_a_fleet_of_which_nothing_is_known_is_not_well() -> None:
    """One agent that cannot tell is named; only if all are well the fleet is."""
    well, unsure = _diagnosis(verdict=1), _diagnosis(verdict=2)
    both = merged_answers.diagnosis([("a", well), ("b", unsure)], admin.DiagnoseRequest())
    assert (both.verdict, both.sentence.startswith("b: ")) == (admin.DIAGNOSIS_VERDICT_CANNOT_TELL, True)
    alone = merged_answers.diagnosis([("a", well)], admin.DiagnoseRequest(), [("c", "no answer in 12 s")])
    assert (alone.verdict, alone.sentence, [*alone.missing]) == (
        admin.DIAGNOSIS_VERDICT_CANNOT_TELL,
        "I cannot tell: 1 of 2 agents gave no diagnosis",
        ["c: no diagnosis: no answer in 12 s"],
    )
    good = merged_answers.diagnosis([("a", well)], admin.DiagnoseRequest())
    assert good.verdict == admin.DIAGNOSIS_VERDICT_NOTHING_WRONG
