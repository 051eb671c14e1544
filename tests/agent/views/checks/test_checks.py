"""The checks of ``agentctl doctor``: each problem is a finding; a healthy installation has none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from penstock.agent.views.checks.agent_checks import check_agent, check_rollouts
from penstock.agent.views.checks.cause_checks import Judgement, check_causes
from penstock.agent.views.checks.findings import NOTE, OK, WRONG
from penstock.agent.views.checks.order_checks import Orders, check_orders
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

_NOW = 1_800_000_000


def _status(**fields: Any) -> admin.AgentStatus:
    """Return the status of a healthy agent."""
    values = {
        "version": "1.0",
        "start_time": {"seconds": _NOW - 60},
        "now": {"seconds": _NOW},
        "state_dir": "/state",
        "disk_free_bytes": 1 << 40,
        "otlp_endpoint": "http://jaeger:4317",
        "listen_address": "unix:///run/penstock/ingest.sock",
    }
    return admin.AgentStatus(**{**values, **fields})


def _engine(**fields: Any) -> admin.Engine:
    """Return a healthy engine; *source* fields override."""
    source = {
        "hello": {"process": "engine-core", "penstock_version": "1.0", "vllm_version": "0.32.0"},
        "epoch": 7,
        "connected": True,
        "hooks": [{"name": "scheduler", "installed": True}],
        "clock_offset_nano": 1_000_000,
        **fields.pop("source", {}),
    }
    values = {
        "key": {"engine": "0"},
        "connected": True,
        "in_sync": True,
        "facts": {"model": "tiny"},
        "sources": [source],
    }
    return admin.Engine(**{**values, **fields})


_LATE = {"name": "num_notifications_after_expiry", "connector": "NixlConnector"}
_MOONCAKE = {"name": "num_failed_recvs", "connector": "MooncakeConnector"}
_DRILL = admin.Drill(
    id="drill-1",
    spec={"author": "bob@host"},
    started={"seconds": _NOW - 60},
    engines=[{"key": {"engine": "0"}}],
)
_ORDER = admin.Quarantine(
    key={"engine": "0"}, peer={"address": "p:1"}, state=events.QUARANTINE_STATE_OPEN, author="cid@host"
)


def test_an_installation_that_is_well() -> None:
    """A healthy installation has no note, and the output lists what was checked."""
    found = check_agent(_status(engines_expected=1), [_engine()], _NOW)
    assert {finding.level for finding in found} == {OK}
    text = "\n".join(finding.what for finding in found)
    for part in (
        "1.0 answers",
        "1 of 1 engine",
        "http://jaeger:4317",
        "free",
        "1 hook installed, policy in force",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("fields", "level", "what", "advice"),
    [
        (
            {"degraded": "disk full"},
            WRONG,
            "degraded: disk full",
            "check the disk and the files of /state",
        ),
        ({"disk_free_bytes": 1 << 20}, WRONG, "1 MiB free", "free disk space"),
        ({"disk_free_bytes": 1 << 29}, NOTE, "512 MiB free", "free disk space"),
        ({"otlp_endpoint": ""}, NOTE, "traces are not exported", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"otlp_error": "refused"}, WRONG, "do not reach http://jaeger:4317: refused", "check the backend"),
        ({"oldest_unexported": {"seconds": _NOW - 900}}, WRONG, "15m late", "traceSampleRatio"),
        (
            {"messages_refused": 3, "last_refusal": "epoch"},
            WRONG,
            "3 messages of engines were refused",
            "install",
        ),
        ({"acknowledged_entries_lost": 7}, WRONG, "7 acknowledged entries are lost", "power"),
        ({"engines_expected": 2}, WRONG, "1 of 2 engines connected", "PENSTOCK_ENDPOINT=unix:///run"),
        ({"now": {"seconds": _NOW - 60}}, NOTE, "its clock is 60s behind this machine's", "synchronize"),
        (
            {"version": "2.0"},
            NOTE,
            "penstock is 2.0 here, 1.0 in 1 process of engines",
            "finish the upgrade",
        ),
        (
            {"policy_file": "/p.yaml", "policy_file_error": "line 3"},
            WRONG,
            "/p.yaml is refused",
            "correct the file",
        ),
    ],
)
def test_what_may_be_wrong_with_the_agent(fields: dict[str, Any], level: str, what: str, advice: str) -> None:
    """Each problem of the agent is one more finding, with advice."""
    found = [item for item in check_agent(_status(**fields), [_engine()], _NOW) if item.level != OK]
    assert [item.level for item in found] == [level]
    assert what in found[0].what
    assert advice in found[0].advice


@pytest.mark.parametrize(
    ("others", "level", "what"),
    [
        ([_engine()], OK, "1 of 2 engines connected, 1 stopped"),
        ([], WRONG, "0 of 2 engines connected"),
        ([_engine(connected=False, said_goodbye=True)], NOTE, "0 of 2 engines connected, 2 stopped"),
        ([_engine(connected=False)], WRONG, "0 of 2 engines connected"),
    ],
)
def test_an_engine_that_was_stopped_is_not_expected(
    others: list[admin.Engine], level: str, what: str
) -> None:
    """As in the metric penstock_engines_expected; one that has never come, or has vanished, is missing."""
    engines = [_engine(connected=False, said_goodbye=True), *others]
    found = next(
        each for each in check_agent(_status(engines_expected=2), engines, _NOW) if "engines" in each.what
    )
    assert (found.level, found.what) == (level, what)


@pytest.mark.parametrize(
    ("fields", "level", "what", "advice"),
    [
        ({"connected": False}, WRONG, "not connected, last seen", "its log"),
        ({"facts": None}, WRONG, "no snapshot", "check again"),
        ({"paused": True, "in_sync": False}, WRONG, "paused: vLLM's own", "agentctl resume 0"),
        ({"role_guessed": True}, NOTE, "its role was guessed", "PENSTOCK_LABELS=role=decode"),
        ({"in_sync": False, "wanted_hash": "a" * 64}, WRONG, "aaaaaaaaaaaa is not in force", "check again"),
        ({"in_sync": False, "policy": {"last_error": "no budget"}}, WRONG, "refuses policy", "rollback"),
        (
            {"source": {"hooks": [{"name": "eplb", "installed": False, "reason": "no such method"}]}},
            WRONG, "hook eplb is not installed: no such method", "PENSTOCK_HOOKS_DISABLED=eplb",
        ),
        (
            {"source": {"hooks": [{"name": "eplb", "installed": False, "reason": "disabled by PENSTOCK_HOOKS_DISABLED"}]}},
            NOTE, "hook eplb is off", "",
        ),
        (
            {"source": {"drops": [{"reason": "queue_full", "kind": "transfer_sample", "count": 3}]}},
            WRONG, "3 transfer_sample lost", "burst",
        ),
        (
            {"source": {"guard_errors": [{"hook": "nixl.poll", "error_class": "KeyError", "count": 2}]}},
            WRONG, "2 internal errors of penstock in nixl.poll: KeyError", "report it",
        ),
        ({"source": {"clock_offset_nano": -3 * 10**9}}, WRONG, "its clock is 3.0s behind the agent's", "NTP"),
        ({"source": {"emitter": {"unacknowledged_bytes": 20 << 20}}}, WRONG, "20 of 32 MiB", "CPU limit"),
        (
            {"source": {"upstream_counts": [{**_LATE, "upstream": 3, "seen": 2}]}},
            WRONG, "engine-core: vLLM counts 3 late reads (num_notifications_after_expiry), penstock 2, since the process began",
            "trust vLLM's own (vllm:nixl_num_notifications_after_expiry_total): penstock misses some",
        ),
        (
            {"source": {"upstream_counts": [{"name": "num_of_tomorrow", "upstream": 1, "seen": 0}]}},
            WRONG, "vLLM counts 1 num_of_tomorrow (num_of_tomorrow), penstock 0", "trust vLLM's own: penstock",
        ),
        (
            {"source": {"upstream_counts": [{**_MOONCAKE, "upstream": 2, "seen": 0}]}},
            WRONG, "engine-core: vLLM counts 2 failed loads (num_failed_recvs), penstock 0, since the process began",
            "trust vLLM's own (vllm:mooncake_num_failed_recvs_total, of vLLM 0.33 and newer): penstock misses some",
        ),
    ],
)  # fmt: skip
def test_what_may_be_wrong_with_an_engine(fields: dict[str, Any], level: str, what: str, advice: str) -> None:
    """Each problem of an engine is a finding with the engine's key and advice."""
    found = [item for item in check_agent(_status(), [_engine(**fields)], _NOW) if item.level != OK]
    assert [(item.level, item.subject) for item in found] == [(level, "engine 0")]
    assert what in found[0].what
    assert advice in found[0].advice


def test_counters_that_agree() -> None:
    """One finding for all processes; none where nothing was counted or the process is away."""
    rows = [
        {**_LATE, "upstream": 1, "seen": 1},
        {"name": "num_failed_handshakes", "upstream": 1, "seen": 1},
    ]
    engine = _engine(source={"upstream_counts": rows})
    other = engine.sources.add()
    other.CopyFrom(engine.sources[0])
    other.epoch, other.hello.process, other.hello.rank = 8, "worker", 1
    assert [item.what for item in check_agent(_status(), [engine], _NOW) if "vLLM's own" in item.what] == [
        "vLLM's own counters agree: 2 late reads, 2 failed handshakes"
    ]
    other.upstream_counts[0].rank, other.upstream_counts[0].upstream = 1, 0
    (found,) = [item for item in check_agent(_status(), [engine], _NOW) if item.level != OK]
    assert "worker 1: vLLM counts 0 late reads" in found.what
    other.connected = False
    assert {item.level for item in check_agent(_status(), [engine], _NOW)} == {OK}


def test_a_pause_is_not_also_a_missing_hook() -> None:
    """A paused engine has one finding: no missing hook, no late policy."""
    hooks = [{"name": "scheduler", "installed": False, "reason": "uninstalled"}]
    found = check_agent(_status(), [_engine(paused=True, in_sync=False, source={"hooks": hooks})], _NOW)
    assert sum(item.level == WRONG for item in found) == 1


_WITHOUT = [
    {"name": "handshake_queue", "lost": "time in the handshake\nqueue", "reason": "no _executor"},
    {"name": "lease_expiry", "lost": "why a lease ended", "reason": "no _reqs_to_send"},
]


def test_what_a_hook_does_without_is_a_note() -> None:
    """One for all workers that say the same, none for a hook that is not installed; no problem."""
    engine = _engine()
    for rank in range(3):
        source = engine.sources.add(epoch=8 + rank, connected=True)
        source.hello.process, source.hello.rank, source.hello.vllm_version = "worker", rank, "0.30.0"
        source.hooks.add(name="nixl", installed=True, missing_parts=_WITHOUT[: 1 if rank == 2 else 2])
        source.hooks.add(name="ec", reason="disabled by PENSTOCK_HOOKS_DISABLED", missing_parts=_WITHOUT)
    found = [item for item in check_agent(_status(), [engine], _NOW) if "without" in item.what]
    assert [(item.level, item.subject, item.what) for item in found] == [
        (NOTE, "engine 0", f"{who}: hook nixl works without: {lost} (vLLM 0.30.0 lacks what that needs)")
        for who, lost in (
            ("2 workers", "time in the handshake queue, why a lease ended"),
            ("worker 2", "time in the handshake queue"),
        )
    ]
    assert found[0].advice == "agentctl describe engine 0 -o yaml has the reason of each"


def test_a_hook_that_its_engine_would_not_use_is_not_missing() -> None:
    """Its vLLM has no such connector, and the engine none either."""
    engine = _engine()
    source = engine.sources.add(epoch=8, connected=True)
    source.hooks.add(name="ec_connector", reason="not used by this engine: ECConnectorBase.start is missing")
    assert not [item for item in check_agent(_status(), [engine], _NOW) if "ec_connector" in item.what]


def test_what_engines_say_of_missing_parts_is_cut() -> None:
    """However many parts, and however long."""
    parts = [{"name": "x" * 900, "lost": "" if number else "y" * 900} for number in range(50)]
    source = {"hooks": [{"name": "scheduler", "installed": True, "missing_parts": parts}]}
    (found,) = [item for item in check_agent(_status(), [_engine(source=source)], _NOW) if item.level != OK]
    assert len(found.what) < 600
    assert f"works without: {'y' * 99}…, {'x' * 99}…" in found.what


def test_a_process_that_engines_share_is_looked_at_once() -> None:
    """The API process of two engines yields one finding."""
    source = {"drops": [{"reason": "queue_full", "kind": "transfer_sample", "count": 3}]}
    engines = [_engine(key={"engine": key}, source=source) for key in ("0", "1")]
    assert sum("lost" in item.what for item in check_agent(_status(), engines, _NOW)) == 1


def test_two_engines_of_one_name_are_told_how_to_be_two() -> None:
    """Two EngineCores of one name are a problem; a disconnected one or a worker does not count."""
    engine = _engine(in_sync=False)
    worker, gone, other = (engine.sources.add() for _ in range(3))
    for number, source in enumerate((worker, gone, other), start=8):
        source.CopyFrom(engine.sources[0])
        source.epoch, source.hello.pid = number, number
    worker.hello.process = "worker"
    gone.connected = False
    (found,) = [item for item in check_agent(_status(), [engine], _NOW) if item.level != OK]
    assert (found.level, found.subject) == (WRONG, "engine 0")
    assert "2 EngineCores share this name (pid 0, 10)" in found.what
    assert "PENSTOCK_SERVER" in found.advice


def test_without_engines_doctor_says_how_to_connect_one() -> None:
    """The advice has the address on which this agent listens."""
    (found,) = [item for item in check_agent(_status(), [], _NOW) if item.level == WRONG]
    assert "PENSTOCK_ENDPOINT=unix:///run/penstock/ingest.sock" in found.advice


@pytest.mark.parametrize(
    ("state", "level", "what", "advice"),
    [
        ("progressing", OK, "at 5 %", ""),
        ("promoted", None, "", ""),
        ("undecided", NOTE, "its hold ended 2m ago: at 5 %", "agentctl rollout promote strict"),
        ("paused", NOTE, "at 5 %", "agentctl rollout resume strict"),
        ("aborted", NOTE, "at 5 %", "agentctl rollout history strict"),
    ],
)
def test_a_rollout_that_waits_or_was_taken_back_is_a_note(
    state: str, level: str | None, what: str, advice: str
) -> None:
    """Nothing is broken: a person decides."""
    rollout = admin.PolicyRollout(
        name="strict", state=state, message="at 5 %", step_ends={"seconds": _NOW - 120}
    )
    found = list(check_rollouts([rollout], _NOW))
    assert [(item.level, item.subject, item.what) for item in found] == (
        [(level, "rollout strict", what)] if level else []
    )
    assert all(advice in item.advice for item in found)


def _policy(name: str, priority: int, expires: str | None, owner: str = "imperative") -> admin.Policy:
    spec = {"priority": priority} | ({"expiresAt": expires} if expires else {})
    return admin.Policy(name=name, author="eve@host", owner=owner, manifest_json=json.dumps({"spec": spec}))


def test_what_is_in_force_for_a_while_is_a_note() -> None:
    """Each drill, each peer in quarantine once, each break-glass policy that has not ended; with what ends it."""
    exempt = admin.Quarantine(peer={"address": "p:2"}, state=events.QUARANTINE_STATE_CLOSED)
    policies = [
        _policy("glass", 950, "2027-01-15T09:00:00Z"),
        _policy("glass", 950, "2027-01-15T09:00:00Z"),
        _policy("ended", 950, "2027-01-15T07:59:59Z"),
        _policy("calm", 100, "2027-01-15T09:00:00Z"),
        _policy("high", 800, None),
    ]
    found = list(check_orders(Orders([_DRILL], [_ORDER, exempt]), policies, _NOW))
    assert [(each.level, each.subject) for each in found] == [
        (NOTE, "drill drill-1"),
        (NOTE, "peer p:1"),
        (NOTE, "policy glass"),
    ]
    drill, peer, glass = found
    assert drill.what.endswith("by bob@host")
    assert drill.advice == "'agentctl drill stop drill-1' ends it"
    assert peer.advice.endswith("'agentctl quarantine lift p:1' ends it")
    assert glass.what == "break-glass, ends in 60m, by eve@host"
    assert glass.advice == "'agentctl delete policy glass' ends it"


_IN_AN_HOUR = {"until": {"seconds": _NOW + 3600}}


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([{"key": {"engine": "0"}, "state": 2}], "quarantined in 1 engine, until: its engine id changes"),
        (
            [
                {"key": {"engine": "0"}, "state": 2, "reason": "3 failures"},
                {"key": {"engine": "1"}, "state": 2, "author": "bob", "reason": "two\nlines", **_IN_AN_HOUR},
            ],
            "quarantined in 2 engines, by bob: two lines",
        ),
        (
            [{"key": {"engine": "0"}, "state": 3, **_IN_AN_HOUR}, {"key": {"engine": "1"}, **_IN_AN_HOUR}],
            "probed by 1 engine, quarantine ordered, not in force in 1 engine, until: in 60m",
        ),
        (
            [{"author": "bob", **_IN_AN_HOUR}],
            "quarantine ordered, in force in no engine, until: in 60m, by bob",
        ),
    ],
)
def test_a_quarantine_is_what_its_engines_say(rows: list[dict[str, Any]], what: str) -> None:
    """By state, with the end and the author that all have or that are known, on one line."""
    orders = [admin.Quarantine(peer={"address": "p:1"}, **row) for row in rows]
    (found,) = check_orders(Orders([], orders), [], _NOW)
    assert found.what == what


@pytest.mark.parametrize(
    ("owner", "advice"),
    [
        ("file:p.yaml", "remove it from the file p.yaml to end it"),
        ("kubernetes:prod", "delete it at its policy source kubernetes:prod to end it"),
    ],
)
def test_a_break_glass_policy_ends_where_it_is_kept(owner: str, advice: str) -> None:
    """An agent deletes no policy of a file or another source."""
    policy = _policy("glass", 950, "2027-01-15T09:00:00Z", owner)
    (found,) = check_orders(Orders(), [policy], _NOW)
    assert found.advice == advice


def test_of_many_orders_the_first_are_named() -> None:
    """The command that lists all is named with the rest."""
    is_open = events.QUARANTINE_STATE_OPEN
    orders = [
        admin.Quarantine(key={"engine": "0"}, peer={"address": f"p:{port}"}, state=is_open)
        for port in range(9)
    ]
    found = list(check_orders(Orders([], orders), [], _NOW))
    assert [each.subject for each in found] == [*(f"peer p:{port}" for port in range(5)), "peers"]
    assert (found[-1].what, found[-1].advice) == ("4 more", "'agentctl quarantine list' lists all")


def test_an_engine_that_is_ordered_to_pause_is_a_note() -> None:
    """With who ordered it, and what takes it back."""
    found = check_agent(_status(), [_engine(pause={"author": "bob"})], _NOW)
    (note,) = [each for each in found if each.level == NOTE and "pause" in each.what]
    assert note.what.startswith("ordered to pause, not paused yet; by bob")
    assert note.advice.startswith("agentctl resume 0")


def _cause(kind: str, **fields: Any) -> admin.DiagnosedCause:
    values = {
        "sentence": f"what is {kind}",
        "confidence": admin.DIAGNOSIS_CONFIDENCE_CERTAIN,
        "engines": [{"engine": "0"}],
    }
    return admin.DiagnosedCause(kind=kind, **{**values, **fields})


def _judged(*causes: admin.DiagnosedCause, **fields: Any) -> Judgement:
    lasting = any(not each.HasField("until") for each in causes)
    verdict = admin.DIAGNOSIS_VERDICT_CAUSES if lasting else admin.DIAGNOSIS_VERDICT_NOTHING_WRONG
    values = {"verdict": verdict, "sentence": "what is said of all", "at": {"seconds": _NOW}}
    return Judgement(admin.Diagnosis(causes=causes, **{**values, **fields}))


_MORE = "agentctl diagnose has the evidence"


@pytest.mark.parametrize(
    ("cause", "level", "what", "advice"),
    [
        (
            _cause("peer_refuses", since={"seconds": _NOW - 300}, commands=["agentctl a", "agentctl b", "agentctl c"]),
            WRONG, "what is peer_refuses (since 07:55:00 UTC, 5m ago)", f"agentctl a; agentctl b; {_MORE}",
        ),
        (
            _cause("peer_slow", confidence=admin.DIAGNOSIS_CONFIDENCE_LIKELY, commands=["agentctl doctor"]),
            WRONG, "what is peer_slow", _MORE,
        ),
        (
            _cause("peer_slow", confidence=admin.DIAGNOSIS_CONFIDENCE_POSSIBLE, commands=["agentctl a"]),
            NOTE, "what is peer_slow", f"agentctl a; {_MORE}",
        ),
        (_cause("of_tomorrow", confidence=0), NOTE, "what is of_tomorrow", _MORE),
        (
            _cause("no_transfer_parameters", effects=[_cause("leases_expire")]),
            WRONG, "what is no_transfer_parameters; its effect: what is leases_expire", _MORE,
        ),
        (
            _cause("agent_blind", effects=[_cause(f"engine_{number}") for number in range(5)]),
            WRONG,
            "what is agent_blind; its effects: what is engine_0; what is engine_1; what is engine_2; 2 more",
            f"check the agent's disk and the files of its state directory; see docs/guides/state.md; {_MORE}",
        ),
    ],
)  # fmt: skip
def test_each_cause_of_the_diagnosis_is_a_finding(
    cause: admin.DiagnosedCause, level: str, what: str, advice: str
) -> None:
    """Its sentence, since when, what it brings about, and its first commands; a problem if it is at least likely."""
    (found,) = check_causes(_judged(cause))
    assert found == (level, cause.kind, what, advice)


def test_what_has_ended_is_a_note() -> None:
    """In the past tense, below what lasts; of many, how many."""
    ended = [
        _cause(f"k{number}", until={"seconds": _NOW - 60}, commands=["agentctl a"]) for number in range(5)
    ]
    found = list(check_causes(_judged(*ended)))
    assert [(each.level, each.subject, each.what) for each in found] == [
        *((NOTE, f"k{number}", f"what is k{number}") for number in range(3)),
        (NOTE, "transfers", "2 more causes ended"),
        (OK, "transfers", "what is said of all"),
    ]
    found = list(check_causes(_judged(_cause("peer_refuses"), ended[0])))
    assert [(each.level, each.subject) for each in found] == [(WRONG, "peer_refuses"), (NOTE, "k0")]


def test_what_cannot_be_told_is_a_note() -> None:
    """With what says why."""
    judged = _judged(verdict=admin.DIAGNOSIS_VERDICT_CANNOT_TELL)
    assert list(check_causes(judged)) == [
        (NOTE, "transfers", "what is said of all", "agentctl diagnose says what is missing")
    ]


@pytest.mark.parametrize(
    ("judgement", "level", "what"),
    [
        (Judgement(old=True), NOTE, "is not known: the agent makes no diagnosis, it is older than agentctl"),
        (Judgement(error="the log is damaged"), WRONG, "is not known: the log is damaged"),
    ],
)
def test_without_a_diagnosis_nothing_is_called_ok(judgement: Judgement, level: str, what: str) -> None:
    """And an engine that is away is a problem, as nobody says what became of it."""
    (found,) = check_causes(judgement)
    assert (found.level, found.what.endswith(what)) == (level, True)
    away = check_agent(_status(), [_engine(connected=False)], _NOW, judgement)
    assert [each.what[:13] for each in away if each.level == WRONG] == ["not connected"]


@pytest.mark.parametrize("kind", ["paused", "clock_offset", "policy_refused"])
def test_what_findings_say_process_by_process_is_said_once(kind: str) -> None:
    """The cause of the same is no finding beside them."""
    assert list(check_causes(_judged(_cause(kind)))) == []


def test_entries_are_lost_once() -> None:
    """A process that reports its drops has a finding; a count that is not whole is the diagnosis' to say."""
    engine = _engine(source={"drops": [{"reason": "queue_full", "kind": "transfer_sample", "count": 3}]})
    judged = _judged(_cause("entries_lost"))
    assert list(check_causes(judged, [engine])) == []
    assert [each.subject for each in check_causes(judged, [_engine()])] == ["entries_lost"]


def test_an_engine_that_is_away_is_judged_once() -> None:
    """The diagnosis says what became of it: the agent's disk may be to blame; its own row is a fact."""
    judged = _judged(
        _cause(
            "agent_blind",
            sentence="the agent cannot store what engines report (disk is full): engines serve without it",
            effects=[_cause("engine_away")],
        )
    )
    status = _status(degraded="disk is full", engines_expected=1)
    found = [*check_agent(status, [_engine(connected=False)], _NOW, judged), *check_causes(judged)]
    assert [each.subject for each in found if each.level == WRONG] == ["agent_blind"]
    assert [(each.subject, each.what[:22]) for each in found if each.level == NOTE] == [
        ("agent", "0 of 1 engine connecte"),
        ("engine 0", "not connected, last se"),
    ]
    # Another trouble of the agent is told; so is an engine that has never come.
    other = check_agent(_status(degraded="no copy", engines_expected=2), [_engine()], _NOW, judged)
    assert [each.what for each in other if each.level == WRONG] == [
        "degraded: no copy",
        "1 of 2 engines connected",
    ]


def test_an_order_that_is_a_cause_is_named_once() -> None:
    """A drill, and a quarantine of a healthy peer; others stay notes."""
    told = [
        _cause("drill", sentence="fault drill drill-1 by bob@host runs on engine 0"),
        _cause("healthy_peer_quarantined", peer="p:1"),
    ]
    other = admin.Quarantine(key={"engine": "0"}, peer={"address": "p:2"}, state=events.QUARANTINE_STATE_OPEN)
    drill = admin.Drill(id="drill-11", spec={"author": "bob@host"})
    found = list(check_orders(Orders([_DRILL, drill], [_ORDER, other]), [], _NOW, told))
    assert [each.subject for each in found] == ["drill drill-11", "peer p:2"]


def _advertising(server: str, address: str, role: int = common.ROLE_PREFILL, **fields: Any) -> admin.Engine:
    facts = {"model": "tiny", "kv_connector": "NixlConnector", "side_channel": address}
    return _engine(key={"server": server, "engine": "0"}, role=role, **{"facts": facts, **fields})


def _of_addresses(*engines: admin.Engine) -> list[tuple[str, str, str]]:
    found = check_agent(_status(), engines, _NOW)
    return [(each.level, each.subject, each.what) for each in found if "advertises" in each.what]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0.0.0.0", "[::1]"])
def test_a_side_channel_that_others_cannot_reach_is_a_note(host: str) -> None:
    """In one pod it is as it should be, and nobody reads from a decode engine."""
    ((level, subject, what),) = _of_addresses(
        _advertising("p", f"{host}:5600"), _advertising("d", f"{host}:5601", common.ROLE_DECODE)
    )
    assert (level, subject) == (NOTE, "engine p/0")
    assert what.startswith(f"advertises {host}:5600 as its side channel: only engines in the same pod")


def test_an_address_that_two_engines_advertise_is_wrong() -> None:
    """Who is asked for one may answer for the other; engines that are away, or that nobody reads from, claim nothing."""
    ((level, subject, what),) = _of_addresses(
        _advertising("p", "10.0.0.1:5600"), _advertising("q", "10.0.0.1:5600")
    )
    assert (level, subject) == (WRONG, "engine p/0")
    assert what.startswith("advertises 10.0.0.1:5600 as its side channel, as q/0 does")
    away = _advertising("q", "10.0.0.1:5600", connected=False)
    assert _of_addresses(_advertising("p", "10.0.0.1:5600"), away) == []
    decodes = [_advertising(name, "10.0.0.1:5600", common.ROLE_DECODE) for name in "de"]
    assert _of_addresses(*decodes) == []
