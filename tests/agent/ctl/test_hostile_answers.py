"""``agentctl`` against an agent that answers anything: a sentence or a normal answer, in bounded time, and no traceback."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from click.testing import CliRunner
from google.protobuf.message_factory import GetMessageClass
from penstock.agent.ctl.commands.orders import pause
from penstock.agent.ctl.main import cli
from penstock.proto.v1 import admin_pb2 as admin

from tests.support.agent.agent import short_directory
from tests.support.agent.command_lines import CommandLine, command_lines
from tests.support.fleet.hostile_agent import METHODS, running_hostile_agent
from tests.support.fleet.hostile_answers import CONTROLS, DOCUMENTS, MANIFEST, WORDS, Words, answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from click.testing import Result

    from tests.support.fleet.hostile_agent import HostileAgent

USUAL = {method: answer(method, Words()) for method in METHODS}
# What a relay merges; the longest lists have 65,536 entries, and take as much longer.
ROWS = 2_000
NESTED = 3_000
# Variants of what another one shows, which are for long runs.
_WORDS_LIKE_OTHERS = {
    "smallest",
    "infinite",
    "negative_infinite",
    "year_1678",
    "year_9999",
    "only_controls",
    "long_texts",
    "negative_choices",
}
_DOCUMENTS_LIKE_OTHERS = {
    "a_text",
    "deep",
    "spec_is_a_list",
    "annotations_are_a_list",
    "labels_are_a_list",
    "models_are_a_number",
    "percent_is_a_text",
    "rollout_is_a_list",
}
# That mean something to agentctl, and one that does not.
_CODES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.DATA_LOSS,
}


def _variants(names: Iterable[str], like_others: set[str]) -> list[Any]:
    assert like_others <= set(names)
    return [pytest.param(name, marks=[pytest.mark.long] * (name in like_others)) for name in sorted(names)]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[HostileAgent, str]]:
    """Serve a hostile agent."""
    with short_directory() as directory, running_hostile_agent(f"unix://{directory}/bad.sock") as bad:
        yield bad, f"unix://{directory}/bad.sock"


@pytest.fixture
def hostile(served: tuple[HostileAgent, str]) -> HostileAgent:
    """Return the agent, which says what agents say until a test lets it say something else."""
    bad, _ = served
    bad.answers, bad.streams, bad.error, bad.trailing = dict(USUAL), {}, None, ()
    return bad


@pytest.fixture
def agentctl(served: tuple[HostileAgent, str]) -> Callable[..., Result]:
    """Return what runs a command line against it; anything but an exit is a failure, as is a control character."""
    runner = CliRunner(env={"AGENTCTL_ADDRESS": served[1], "EDITOR": "true"})

    def run(*words: str) -> Result:
        said = runner.invoke(cli, words)
        assert isinstance(said.exception, SystemExit | None), (words, said.exc_info)
        assert said.exit_code in range(5), words
        strange = {each for each in said.output if not each.isprintable() and each != "\n"}
        assert not strange, (words, strange)
        return said

    return run


@pytest.fixture
def lines(tmp_path: Path) -> list[CommandLine]:
    """Return a command line of each command."""
    return command_lines(tmp_path, MANIFEST)


def _run_all(
    agentctl: Callable[..., Result],
    lines: list[CommandLine],
    formats: tuple[str, ...] = ("table", "json", ""),
) -> list[Result]:
    return [agentctl(*line.typed(output)) for line in lines for output in formats if output in line.formats]


def test_every_method_is_asked(
    hostile: HostileAgent, agentctl: Callable[..., Result], lines: list[CommandLine]
) -> None:
    """The usual answers are taken by all commands, in all formats; what no command asks is not asked here."""
    hostile.asked.clear()
    said = _run_all(agentctl, lines, ("table", "json", "yaml", ""))
    assert not [each.output for each in said if each.exit_code == 2]
    assert set(METHODS) - set(hostile.asked) == {"Backup"}


@pytest.mark.parametrize("wrong", _variants(set(WORDS) - {"usual"}, _WORDS_LIKE_OTHERS))
def test_what_fields_say(
    hostile: HostileAgent, agentctl: Callable[..., Result], lines: list[CommandLine], wrong: str
) -> None:
    """Extremes of each type in every field of every answer."""
    hostile.answers.update({method: answer(method, WORDS[wrong]) for method in METHODS})
    _run_all(agentctl, lines)


@pytest.mark.parametrize("wrong", _variants(DOCUMENTS, _DOCUMENTS_LIKE_OTHERS))
def test_documents_that_are_none(
    hostile: HostileAgent, agentctl: Callable[..., Result], lines: list[CommandLine], wrong: str
) -> None:
    """What is no JSON, no object or no manifest is a sentence that says whose answer to what, wherever it is read."""
    words = Words(document=DOCUMENTS[wrong])
    reading = [
        line
        for line in lines
        if {"policy", "audit", "doctor", "export", "set-policy", "rollback", "rollout", "engine"}
        & set(line.words)
    ]
    hostile.answers.update({method: answer(method, words) for method in METHODS})
    said = _run_all(agentctl, reading)
    refused = [each for each in said if "answers otherwise than agents do" in each.stderr]
    assert len(refused) >= 10
    assert all(each.exit_code for each in refused)
    assert all("cannot be used: its" in each.stderr for each in refused)


def test_empty_answers_and_garbage(
    hostile: HostileAgent, agentctl: Callable[..., Result], lines: list[CommandLine]
) -> None:
    """Messages without a field, and bytes that are none."""
    bounded = [line for line in lines if line.words[0] != "watch"]
    hostile.answers.update(dict.fromkeys(METHODS, b""))
    _run_all(agentctl, bounded)
    hostile.answers.update(dict.fromkeys(METHODS, b"\xff" * 50))
    _run_all(agentctl, lines, ("table", ""))


def test_long_lists(hostile: HostileAgent, agentctl: Callable[..., Result], lines: list[CommandLine]) -> None:
    """Thousands of entries of every kind: no command compares each with each."""
    hostile.answers.update({method: _many(method, ROWS) for method in METHODS})
    # To stop all drills is a call for each.
    _run_all(agentctl, [line for line in lines if line.words != ("drill", "stop", "--all")], ("table", ""))


def test_longer_lists_than_any_relay_has(
    hostile: HostileAgent, agentctl: Callable[..., Result], lines: list[CommandLine]
) -> None:
    """They are refused, before anything is made of them."""
    hostile.answers.update(
        {method: _many(method, 70_000) for method in ("ListEngines", "Diagnose", "ListPeers")}
    )
    hostile.answers["ListEvents"] = b"\x0a\x00" * 2_000_000
    for words in ("get engines", "get peers", "diagnose", "get events"):
        assert "at most" in (said := agentctl(*words.split())).output or "more than" in said.output


def test_deep_nesting(hostile: HostileAgent, agentctl: Callable[..., Result]) -> None:
    """Spans below spans, in cycles and of one id, and causes within causes."""
    chain = [
        admin.Span(span_id=str(each), parent_span_id=str(each - 1) if each else "", name="s")
        for each in range(NESTED)
    ]
    strange = [("a", "b"), ("b", "a"), ("", ""), ("c", "c"), ("d", ""), ("d", ""), ("e", "d"), ("f", "")]
    circle = [admin.Span(span_id=own, parent_span_id=above, name="s") for own, above in strange]
    for spans in (chain, circle):
        hostile.answers["GetTrace"] = admin.Trace(spans=spans).SerializeToString()
        said = agentctl("trace", "r")
        assert said.exit_code == 0
        assert len(said.stdout.splitlines()) == 1 + len(spans)
        assert agentctl("trace", "r", "-o", "json").exit_code == 0
    cause = admin.DiagnosedCause(sentence="s")
    for _ in range(95):
        cause = admin.DiagnosedCause(sentence="s", effects=[cause])
    hostile.answers["Diagnose"] = admin.Diagnosis(
        verdict=admin.DIAGNOSIS_VERDICT_CAUSES, causes=[cause]
    ).SerializeToString()
    for output in ("table", "json", "yaml"):
        agentctl("diagnose", "-o", output)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, marks=[pytest.mark.long] * (code not in _CODES))
        for code in grpc.StatusCode
        if code is not grpc.StatusCode.OK
    ],
)
def test_errors_with_garbage(
    hostile: HostileAgent, agentctl: Callable[..., Result], lines: list[CommandLine], code: grpc.StatusCode
) -> None:
    """Each code, with words that move the cursor: one line, and an exit code."""
    hostile.error = (code, CONTROLS + "x" * 2_000)
    waits = [line for line in lines if line.words[0] not in {"watch", "doctor", "version", "diff"}]
    for said in _run_all(agentctl, waits, ("table", "")):
        assert said.exit_code in {1, 2, 4}
        assert said.stderr.count("\n") <= 2


def test_metadata_that_is_garbage(hostile: HostileAgent, agentctl: Callable[..., Result]) -> None:
    """Of a relay's word about agents that did not answer: nothing, or a short sentence."""
    missing = [admin.MissingAgent(name=CONTROLS, reason=CONTROLS * 20) for _ in range(50)]
    told = admin.RelayCoverage(asked=0, answered=(1 << 32) - 1, missing=missing).SerializeToString()
    for value in (b"\xff" * 200, b"", told[:4_000]):
        hostile.trailing = (("penstock-relay-bin", value),)
        assert agentctl("get", "engines").exit_code == 0


def test_streams_without_an_end(
    hostile: HostileAgent, agentctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits ends by its deadline; a bundle ends by its size."""
    monkeypatch.setattr(pause, "GRACE", 0.1)
    endless = {
        "WatchRollout": _repeated(admin.Rollout(engines=[{"state": "waiting"}])),
        "SetPaused": _repeated(admin.Rollout(engines=[{"state": "waiting"}])),
        "GetBundle": _repeated(admin.BundlePart(file={"name": "metrics.txt", "content": b"x" * 100_000})),
        "WatchEvents": _repeated(admin.LoggedEvent()),
    }
    hostile.streams.update(endless)
    assert agentctl("pause", "0", "--timeout", "100ms").exit_code == 1
    assert "larger than" in agentctl("bundle", "-f", "-").stderr
    window = admin.BundlePart(journal={})
    batches = (
        admin.BundlePart(batches={"batches": [{"id": each, "body": b"x" * 1_000_000}]}).SerializeToString()
        for each in itertools.count(1)
    )
    hostile.streams["GetBundle"] = itertools.chain([window.SerializeToString()], batches)
    assert "more than" in agentctl("bundle", "-f", "-", "--max-size", "1MiB").stderr
    hostile.streams["GetBundle"] = _repeated(window)
    assert "twice" in agentctl("bundle", "-f", "-").stderr


def test_streams_that_end_at_once(hostile: HostileAgent, agentctl: Callable[..., Result]) -> None:
    """Without an entry nothing is in force, and no bundle is complete."""
    hostile.streams.update({name: () for name, each in METHODS.items() if each.server_streaming})
    for words in ("pause 0", "resume 0", "drill stop 1", "rollback p --wait", "bundle -f -"):
        assert agentctl(*words.split()).exit_code == 1, words


def test_what_nobody_has_foreseen(
    hostile: HostileAgent, agentctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a sentence with the name of the error, and how to see where it was; tests see the error itself."""

    def fail(*_: object) -> None:
        raise KeyError("spec")

    monkeypatch.setattr("penstock.agent.ctl.commands.inspect.engines.engine_rows", fail)
    with pytest.raises(AssertionError, match="KeyError"):
        agentctl("get", "engines")
    monkeypatch.delenv("AGENTCTL_TRACEBACK")
    said = agentctl("get", "engines")
    assert said.exit_code == 1
    assert "answered something that agentctl does not understand (KeyError: 'spec')" in said.stderr
    assert "AGENTCTL_TRACEBACK=1" in said.stderr
    assert said.stderr.count("\n") == 1


def _many(method: str, count: int) -> bytes:
    """Return an answer whose lists have *count* empty entries each."""
    descriptor = METHODS[method].output_type
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.is_repeated and field.message_type and not field.message_type.GetOptions().map_entry:
            getattr(message, field.name).extend([GetMessageClass(field.message_type)()] * count)
    body: bytes = message.SerializeToString()
    return body


def _repeated(message: Any) -> Iterator[bytes]:
    return itertools.repeat(message.SerializeToString())
