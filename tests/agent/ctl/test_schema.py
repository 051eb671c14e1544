"""The published JSON Schema fits what every command prints, in JSON and in YAML, and jq keeps every value."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml
from google.protobuf.descriptor import FieldDescriptor
from jsonschema import Draft202012Validator
from penstock.agent.ctl import json_schema
from penstock.agent.ctl.command_schemas import COMMANDS
from penstock.agent.ctl.main import cli
from penstock.agent.ctl.output import dump
from penstock.agent.model import EngineKey
from penstock.agent.replay import MIN_LOADS
from penstock.agent.stalls import Stall, StallKind
from penstock.agent.views.json_values import MOST, as_json_values, moment
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import DECIDED_BY_VLLM, OUTCOME_FAILED
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.policy_pb2 import StackDump
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import deferral_start, sample_batch, transfer_failure
from tests.support.agent.stories import closed, handshake, outcome
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result
    from google.protobuf.message import Message

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_PUBLISHED = Path(__file__).parents[3] / "docs" / "reference" / "agentctl.schema.json"
_PEER = "10.0.0.7:5600"
_GONE = "10.0.0.8:5600", "10.0.0.9:5600"
_EVIL = "e\n\x1b[2J\x85\x9b\u202e\u2028\u200b\ufeff\U000e0041 1e5"


def _closed(node: Any) -> Any:
    """Return the schema without additional properties."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _closed(value) for key, value in node.items()}
    if "properties" in made and "required" in made and "allOf" not in made:
        made["additionalProperties"] = False
    return made


def _validator(name: str) -> Draft202012Validator:
    published = _closed(json_schema.schema())
    definitions = published["$defs"]
    # An engine and something more: closed as one.
    first, second = definitions["describe-engine"]["allOf"]
    engine = definitions[first["$ref"].rpartition("/")[2]]
    definitions["describe-engine"] = {
        **engine,
        "properties": engine["properties"] | second["properties"],
        "required": engine["required"] + second["required"],
    }
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions})


def test_the_published_schema_is_current() -> None:
    """``make schema`` writes the file."""
    assert _PUBLISHED.read_text() == json_schema.text()
    Draft202012Validator.check_schema(json.loads(json_schema.text()))


def _with_output(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the commands that have ``-o``, their words joined by "-"."""
    with click.Context(group) as context:
        for name in [*group.list_commands(context), *getattr(group, "hidden_commands", ())]:
            command = group.get_command(context, name)
            # Groups of groups are named in the singular, and what they list in the plural, as they are typed.
            if isinstance(command, click.Group):
                yield from _with_output(command, (*words, name))
            elif command is not None and any(option.name == "output" for option in command.params):
                yield "-".join((*words, name))


def test_every_command_with_a_format_is_published() -> None:
    """The schema has the commands that have ``-o``, and no others."""
    assert isinstance(cli, click.Group)
    assert set(_with_output(cli)) == set(COMMANDS) == set(_TYPED)


# Typed one after the other; what a command prints is checked by the definition of its name.
_TYPED: dict[str, list[list[str]]] = {
    # Before there are policies that make good what it is about.
    "recommend": [["recommend"], ["recommend", "--since", "2h"]],
    "set-policy": [
        ["set-policy", "p", "--kv-load-failure", "recompute", "-l", "role=decode", "--reason", _EVIL],
        ["set-policy", "p", "--kv-load-failure", "auto", "--wait", "--allow-none"],
        ["set-policy", "ROLLED", "--kv-load-failure", "auto", "-l", "ROLLED", "--rollout-percent", "0"],
    ],
    "apply": [["apply", "-f", "POLICIES", "--all"], ["apply", "-f", "POLICIES", "--all", "--wait"]],
    "rollback": [["rollback", "p"]],
    "rollout-start": [
        ["rollout", "start", "ROLLED", "--reason", _EVIL],
    ],
    "rollout-status": [["rollout", "status"], ["rollout", "status", "ROLLED"]],
    "rollout-pause": [["rollout", "pause", "ROLLED"]],
    "rollout-resume": [["rollout", "resume", "ROLLED"]],
    "rollout-abort": [["rollout", "abort", "ROLLED"]],
    "rollout-promote": [["rollout", "start", "ROLLED"], ["rollout", "promote", "ROLLED"]],
    "rollout-history": [["rollout", "history", "ROLLED"]],
    "delete-policy": [["delete", "policy", "NAME"]],
    "export": [["export"]],
    "import": [["import", "-f", "POLICIES", "--all"], ["import", "-f", "POLICIES", "--all", "--wait"]],
    "get-policy": [
        ["get", "policy"],
        ["get", "policy", "p"],
        ["get", "policy", "--effective", "0"],
    ],
    "get-engines": [["get", "engines"], ["get", "engine", "0"], ["get", "engine", "0", "1"]],
    "get-pairs": [["get", "pairs"]],
    "get-holders": [["get", "holders"], ["get", "holders", "0"]],
    "get-peers": [["get", "peers"]],
    "get-map": [["get", "map"]],
    "get-ejections": [["get", "ejections"], ["get", "ejections", "0"]],
    "signals": [["signals"], ["signals", "0"]],
    "get-suspects": [["get", "suspects"], ["get", "suspects", "--since", "2h"]],
    "get-requests": [["get", "requests"], ["get", "requests", "--deferred"]],
    "get-events": [["get", "events"]],
    "get-audit": [["get", "audit"]],
    "debug-stacks": [["debug", "stacks", "0"]],
    "page": [["page"], ["page", "--role", "read"]],
    "describe-engine": [["describe", "engine", "0"]],
    "describe-peer": [["describe", "peer", _PEER]],
    "describe-policy": [["describe", "policy", "p"]],
    "describe-request": [["describe", "request", "req-1"]],
    "edit-policy": [["edit", "policy", "p", "--reason", _EVIL]],
    "version": [["version"], ["version", "--client"]],
    "config-get-contexts": [["config", "get-contexts"]],
    "diff-policy": [["diff", "policy", "p"], ["diff", "policy", "a", "POLICIES"]],
    "diff-engine": [["diff", "engine", "0", "1"]],
    "trace": [["trace", "req-1"]],
    "diagnose": [["diagnose"], ["diagnose", "--since", "5m", "--baseline", "30m"]],
    "explain": [["explain", "req-1"]],
    "bill": [["bill"], ["bill", "--by", "policy"]],
    "what-if": [["what-if"], ["what-if", "-f", "POLICIES", "--only"]],
    "watch": [["watch", "--since", "1h", "--count", "1"]],
    "doctor": [["doctor"]],
    "quarantine-add": [["quarantine", "add", _PEER]],
    "quarantine-list": [["quarantine", "list"]],
    "quarantine-lift": [["quarantine", "lift", _PEER]],
    "inject-fault": [["inject-fault", "0", "--mode", "slow", "--delay", "2s"]],
    "drain": [["drain", "ENGINE", "--settle", "100ms", "--timeout", "1s"]],
    "eject": [["eject", "off"]],
    "routers": [["routers"], ["routers", "--endpoint", f"{_PEER}=http://10.0.0.7:8000"]],
    "drill-list": [["drill", "list"]],
    "drill-stop": [["drill", "stop", "--all"]],
    "forget-engine": [["forget", "engine", "ENGINE"]],
    "forget-peer": [["forget", "peer", "PEER"]],
    "pause": [["pause", "0"]],
    "resume": [["resume"]],
}


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up a contexts file with control characters, and an editor that changes the priority."""
    contexts = tmp_path / "contexts"
    contexts.write_text(yaml.safe_dump({"contexts": {_EVIL: {"address": _EVIL, "tls-ca": _EVIL}}}))
    contexts.chmod(0o600)
    monkeypatch.setenv("PENSTOCK_CONTEXTS", str(contexts))
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import pathlib, sys, time, yaml\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "made = yaml.safe_load(path.read_text())\n"
        "made['spec']['priority'] = 1 + time.time_ns() % 800\n"
        "path.write_text(yaml.safe_dump(made))\n"
    )
    monkeypatch.setenv("KUBE_EDITOR", f"{sys.executable} {editor}")


@pytest.fixture
def filled(harness: AdminHarness) -> AdminHarness:
    """Two engines with every kind of content, and texts with control characters."""
    now = time.time_ns()
    for key in ("0", "1"):
        core = harness.source(key)
        dump = StackDump(process=_EVIL, threads=[{"name": _EVIL, "frames": [{"function": _EVIL, "line": 1}]}])
        harness.engine(
            key, supported=("kv_load_failure", "peer_quarantine"), faults_allowed=True, stacks=dump
        )
        stall = Stall(StallKind.LOAD_NOT_STARTED, 1, now / 1e9, _EVIL, _EVIL)
        harness.stalls[EngineKey("", key)] = (stall,)
        snapshot = Snapshot(
            time_unix_nano=now,
            engine={"model": _EVIL, "compatibility_hash": key, "compatibility_factors": {_EVIL: _EVIL}},
            policy={"last_error": _EVIL},
            peers=[{"peer": {"address": _PEER}, "quarantine": 2, "quarantine_until_unix_nano": now}],
            in_flight=[{"channel": 1, "count": 1, "oldest_start_time_unix_nano": now}],
        )
        harness.snapshot(core, snapshot)
        harness.append(
            core,
            transfer_failure("req-1", time_ns=now, error_text=_EVIL, handshake_id=2**64 - 1),
            handshake("req-1", number=2**64 - 1),
            outcome("req-1", time_ns=now),
            closed("req-1", time_ns=now, arrival_time_unix_nano=now, finish_reason=_EVIL),
            deferral_start("req-2" + _EVIL, time_ns=now),
            batch=sample_batch(["req-1"]),
        )
    # A recommendation needs many loads.
    for number in range(MIN_LOADS):
        lost = outcome(f"lost-{number}", OUTCOME_FAILED, time_ns=now, decided_by=DECIDED_BY_VLLM)
        harness.append(harness.source("0"), lost)
    for key, peer in zip(("7", "8"), _GONE, strict=True):
        gone = harness.source(key)
        harness.append(core, transfer_failure("req-3", peer=peer, time_ns=now))
        harness.append(gone, transfer_failure("req-4", time_ns=now))
        harness.disconnect(gone)
    return harness


def test_what_every_command_prints_is_valid(filled: AdminHarness, agentctl: Agentctl, tmp_path: Path) -> None:
    """JSON and YAML have the same values, valid by the schema, without control characters."""
    for name in "ab":
        made = document(name, kvLoadFailure=action("auto"))
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(made))
    for name, command_lines in _TYPED.items():
        validator = _validator(name)
        for line in command_lines:
            for output in ("json", "yaml"):
                first = output == "json"
                known = {
                    "POLICIES": str(tmp_path),
                    "NAME": "a" if first else "b",
                    "ENGINE": "7" if first else "8",
                    "PEER": _GONE[not first],
                    "ROLLED": "ra" if first else "rb",
                }
                result = agentctl(*(known.get(word, word) for word in line), "-o", output)
                # Engines vanished: doctor and diagnose find something wrong; what is compared may differ.
                codes = (
                    {1}
                    if name in {"doctor", "diagnose", "drain"}
                    else {0, 1}
                    if name.startswith("diff")
                    else {0}
                )
                assert result.exit_code in codes, (line, result.output)
                for value in _read(result.stdout, output):
                    validator.validate(value)
                _is_seen(result.output)


def test_what_every_command_prints_is_seen(filled: AdminHarness, agentctl: Agentctl, tmp_path: Path) -> None:
    """Tables and errors have no control characters."""
    made = document("a", kvLoadFailure=action("auto"))
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(made))
    for name, command_lines in _TYPED.items():
        for line in command_lines:
            known = {"POLICIES": str(tmp_path), "NAME": "a", "ENGINE": "7", "PEER": _GONE[0], "ROLLED": "r"}
            arguments = [known.get(word, word) for word in line]
            for more in [()] if name == "export" else [("-o", "wide"), ()]:
                _is_seen(agentctl(*arguments, *more).output)
    for arguments in (
        ["top", "--count", "1"],
        ["get", "policy", _EVIL],
        ["get", "engines", "-l", _EVIL],
        ["apply", "-f", _EVIL],
        ["explain", _EVIL],
        [_EVIL],
    ):
        result = agentctl(*arguments)
        assert result.output
        _is_seen(result.output)


def _is_seen(text: str) -> None:
    assert "unspecified" not in text
    assert [character for character in text if character != "\n" and not character.isprintable()] == []


def test_nothing_is_printed_another_way() -> None:
    """Four modules print and none uses ``click.style``: all output passes the escaping of ``render``."""
    here = Path(json_schema.__file__).parent
    prints = {
        path.name for path in here.rglob("*.py") if re.search(r"\b(echo|secho|print)\(", path.read_text())
    }
    styles = {path.name for path in here.rglob("*.py") if "click.style" in path.read_text()}
    assert (prints, styles) == ({"printing.py", "output.py", "lazy_group.py", "program.py"}, set())


def _read(text: str, output: str) -> Iterator[Any]:
    found = list(yaml.safe_load_all(text)) if output == "yaml" else [json.loads(text)]
    assert found
    yield from found


def _extremes(descriptor: Any, variant: int) -> dict[str, Any]:
    """Return the fields of a message at one end of their ranges."""
    fields: dict[str, Any] = {}
    for field in descriptor.fields:
        value = _extreme(field, variant)
        if value is not None:
            fields[field.name] = [value] if isinstance(field.default_value, list) else value
    return fields


def _extreme(field: Any, variant: int) -> Any:
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry or field.message_type.file.name.startswith("google"):
            return None
        if field.containing_oneof is not None:
            return None
        return _extremes(field.message_type, variant)
    if field.name.endswith("_json"):
        return ""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"secret"
    low, high = _ENDS[field.cpp_type]
    if field.type == FieldDescriptor.TYPE_SINT64:
        low, high = -(2**63), 2**63 - 1
    elif field.type == FieldDescriptor.TYPE_UINT32:
        high = 2**32 - 1
    return high if variant else low


_ENDS: dict[int, tuple[Any, Any]] = {
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (-math.inf, math.nan),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_STRING: ("", _EVIL),
    FieldDescriptor.CPPTYPE_ENUM: (0, 2**31 - 1),
}


_BODIES = [field.name for field in Event.DESCRIPTOR.oneofs_by_name["body"].fields]


@pytest.mark.parametrize("variant", [0, 1])
def test_what_engines_may_send_at_most_is_valid(variant: int) -> None:
    """Extremes of the wire are valid: no number beyond a double's range, no unknown enum word."""
    events = []
    for body in _BODIES:
        fields = _extremes(Event.DESCRIPTOR, variant)
        events.append({name: value for name, value in fields.items() if name == body or name not in _BODIES})
    request = {"batch": 2**64 - 1, "key": {"engine": _EVIL}}
    documents: dict[str, Message] = {
        "get-events": admin.ListEventsResponse(events=[{**request, "event": event} for event in events]),
        "get-engines": admin.ListEnginesResponse(**_extremes(admin.ListEnginesResponse.DESCRIPTOR, variant)),
        "get-peers": admin.ListPeersResponse(**_extremes(admin.ListPeersResponse.DESCRIPTOR, variant)),
        "get-requests": admin.ListRequestsResponse(
            **_extremes(admin.ListRequestsResponse.DESCRIPTOR, variant)
        ),
        "get-holders": admin.ListHoldersResponse(**_extremes(admin.ListHoldersResponse.DESCRIPTOR, variant)),
        "signals": admin.Signals(**_extremes(admin.Signals.DESCRIPTOR, variant)),
        "get-suspects": admin.ListSuspectsResponse(
            **_extremes(admin.ListSuspectsResponse.DESCRIPTOR, variant)
        ),
        "bill": admin.Bill(**_extremes(admin.Bill.DESCRIPTOR, variant)),
        "trace": admin.Trace(**_extremes(admin.Trace.DESCRIPTOR, variant)),
        "drill-list": admin.ListDrillsResponse(**_extremes(admin.ListDrillsResponse.DESCRIPTOR, variant)),
    }
    for name, message in documents.items():
        printed = dump(as_json_values(message), "json")
        # What jq does to numbers.
        read = json.loads(printed, parse_int=lambda text: int(float(text)))
        assert read == json.loads(printed) == yaml.safe_load(dump(as_json_values(message), "yaml"))
        _validator(name).validate(read)
        assert "unspecified" not in printed
        _is_seen(printed)


def test_numbers_that_jq_would_round() -> None:
    """Ids and sums are strings with all digits; counts end where a double is exact."""
    engine = as_json_values(
        admin.Engine(sources=[{"epoch": 2**64 - 1}], counters={"bytes": 2**60, "failures": 2**60})
    )
    assert engine["sources"][0]["epoch"] == "18446744073709551615"
    assert (engine["counters"]["bytes"], engine["counters"]["failures"]) == (str(2**60), MOST)


def test_moments_have_nanoseconds() -> None:
    """Both timestamp kinds of the wire have nanoseconds; an unset one is absent."""
    assert moment(1_750_000_000_000_000_001) == "2025-06-15T15:06:40.000000001Z"
    assert moment(2**64 - 1) == "2554-07-21T23:34:33.709551615Z"
    span = admin.Span(start_time_unix_nano=1_750_000_000_000_000_001)
    assert (as_json_values(span)["startTime"], as_json_values(span).get("endTime")) == (
        "2025-06-15T15:06:40.000000001Z",
        None,
    )
    engine = admin.Engine(last_seen={"seconds": 1_750_000_000})
    assert as_json_values(engine)["lastSeen"] == "2025-06-15T15:06:40.000000000Z"


@pytest.mark.parametrize(
    "text", ["1e5", "12345678e901", "0x1F", "0o17", "1_000", ".5", "on", "2025-06-15", "~"]
)
def test_a_text_stays_one_in_yaml(text: str) -> None:
    """A span id of digits and an e stays a string in YAML 1.2."""
    assert dump({"spanId": text}, "yaml") == f"spanId: '{text}'"


@pytest.mark.parametrize("output", ["json", "line", "yaml"])
def test_what_cannot_be_seen_is_escaped(output: str) -> None:
    """Control characters are escaped in names and values, and read back unchanged."""
    printed = dump({_EVIL: [_EVIL, "ümläut 日本 \U0001f600"]}, output)
    _is_seen(printed)
    read = yaml.safe_load if output == "yaml" else json.loads
    assert read(printed) == {_EVIL: [_EVIL, "ümläut 日本 \U0001f600"]}
    assert "ümläut 日本" in printed
