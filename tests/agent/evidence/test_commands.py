"""Every reading command answers from a bundle as it did from the agent; every other command is refused."""

from __future__ import annotations

import json
import re
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner, Result
from penstock.agent.ctl.main import cli
from penstock.agent.errors import StateError
from penstock.agent.model import EngineKey
from penstock.agent.stalls import Stall, StallKind
from penstock.agent.views.command_lines import hinted
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.admin_server import AdminHarness, running_admin
from tests.support.agent.agent import short_directory
from tests.support.agent.batches import deferral_start, sample_batch, transfer_failure
from tests.support.agent.quiet import quiet_logs
from tests.support.agent.stories import closed, handshake, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

_PEER = "10.0.0.7:5600"

READING: dict[str, list[str]] = {
    "get policy": ["get policy", "get policy p", "get policy --effective 0"],
    "get engines": ["get engines", "get engine 0", "get engines -l role=decode"],
    "get peers": ["get peers", "get peers --state all"],
    "get map": ["get map", "get map -o dot", "get map -o mermaid"],
    "get requests": [
        "get requests",
        "get requests --deferred",
        "get requests --queued",
        "get requests --slow",
    ],
    "get events": ["get events", "get events --since 1h", "get events --kind transfer_failure"],
    "get holders": ["get holders", "get holders 0"],
    "get pairs": ["get pairs", "get pairs -o wide"],
    "signals": ["signals", "signals 0 -o wide"],
    "get suspects": ["get suspects", "get suspects --since 2h"],
    "diagnose": ["diagnose", "diagnose --at 1ms"],
    "get audit": ["get audit", "get audit p"],
    "get ejections": ["get ejections"],
    "describe engine": ["describe engine 0", "describe engine 7"],
    "describe peer": [f"describe peer {_PEER}"],
    "describe policy": ["describe policy p"],
    "describe request": ["describe request req-1"],
    "diff policy": ["diff policy p"],
    "diff engine": ["diff engine 0 1"],
    "explain": ["explain req-1", "explain req-9"],
    "trace": ["trace req-1"],
    "doctor": ["doctor"],
    "top": ["top --count 1"],
    "export": ["export"],
    "quarantine list": ["quarantine list"],
    "drill list": ["drill list"],
    "rollout status": ["rollout status"],
    "rollout history": ["rollout history p"],
    "version": ["version"],
    "what-if": ["what-if", "what-if --only --since 2h"],
    "recommend": ["recommend", "recommend -l role=decode --since 2h"],
    "bill": ["bill", "bill --since 2h --by peer"],
}
"""What may be asked of a bundle, by command."""

REFUSED: dict[str, str] = {
    "set-policy": "set-policy q --kv-load-failure fail -l role=decode",
    "apply": "apply -f MANIFEST --all",
    "import": "import -f MANIFEST --all",
    "rollback": "rollback p",
    "rollout start": "rollout start p",
    "rollout pause": "rollout pause p",
    "rollout resume": "rollout resume p",
    "rollout abort": "rollout abort p",
    "rollout promote": "rollout promote p",
    "edit policy": "edit policy p",
    "delete policy": "delete policy p",
    "quarantine add": f"quarantine add {_PEER}",
    "quarantine lift": f"quarantine lift {_PEER}",
    "inject-fault": "inject-fault 0 --mode slow --delay 2s",
    "drill stop": "drill stop --all",
    "drain": "drain 0",
    "eject": "eject 0",
    "routers": "routers",
    "pause": "pause 0",
    "resume": "resume",
    "forget engine": "forget engine 7",
    "forget peer": f"forget peer {_PEER}",
    "watch": "watch --count 1",
    "bundle": "bundle",
    "debug stacks": "debug stacks 0",
}
"""What changes an agent, or waits for a change."""

LOCAL = {
    "completion", "config get-contexts", "config current-context", "config use-context", "config set-context",
    "config delete-context",
}  # fmt: skip
"""Commands that ask no agent."""

OF_A_BUNDLE = {"page"}
"""Commands that only a bundle answers."""


def _commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[str]:
    with click.Context(group) as context:
        for name in [*group.list_commands(context), *getattr(group, "hidden_commands", ())]:
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from _commands(command, (*words, name))
            else:
                yield " ".join((*words, name))


def test_every_command_is_one_of_these() -> None:
    """A new command says here whether a bundle answers it."""
    assert isinstance(cli, click.Group)
    assert set(_commands(cli)) == {*READING, *REFUSED, *LOCAL, *OF_A_BUNDLE}


class _Taken:
    """An agent with every kind of content, and the bundle taken from it."""

    def __init__(self, harness: AdminHarness, file: Path) -> None:
        self.harness = harness
        self.file = file

    def live(self, line: str, *more: str) -> Result:
        return CliRunner(env={"AGENTCTL_ADDRESS": self.harness.address}).invoke(cli, [*line.split(), *more])

    def bundled(self, line: str, *more: str, env: dict[str, str] | None = None) -> Result:
        return CliRunner(env=env).invoke(cli, ["--bundle", str(self.file), *line.split(), *more])


@pytest.fixture(scope="module")
def taken() -> Iterator[_Taken]:
    """Fill an agent and take its bundle."""
    with quiet_logs(), short_directory() as directory, running_admin(directory) as harness:
        both = _Taken(harness, directory / "taken.penstock")
        _fill(both)
        made = both.live("bundle", "-f", str(both.file))
        assert made.exit_code == 0, made.output
        yield both


def _fill(both: _Taken) -> None:
    harness, now = both.harness, time.time_ns()
    assert both.live("set-policy p --kv-load-failure recompute -l role=decode").exit_code == 0
    for key in ("0", "1"):
        core = harness.source(key)
        harness.engine(key, supported=("kv_load_failure", "peer_quarantine"), faults_allowed=True)
        harness.snapshot(
            core,
            Snapshot(
                time_unix_nano=now,
                engine={"model": "tiny", "compatibility_hash": key},
                policy={"kv_action": "recompute"},
                peers=[
                    {
                        "peer": {"address": _PEER},
                        "quarantine": 2,
                        "quarantine_until_unix_nano": now + 3600 * 10**9,
                    }
                ],
                queue={
                    "waiting": [{"reason": 3, "count": 1}],
                    "requests": [
                        {"request_id": "req-9", "waiting": 3, "arrival_time_unix_nano": now - 60 * 10**9}
                    ],
                }
                if key == "0"
                else None,
                in_flight=[{"channel": 1, "count": 1, "oldest_start_time_unix_nano": now - 3600 * 10**9}],
            ),
        )
        harness.append(
            core,
            transfer_failure("req-1", time_ns=now, error_text="refused", handshake_id=7),
            handshake("req-1", number=7),
            outcome("req-1", time_ns=now),
            closed("req-1", time_ns=now, arrival_time_unix_nano=now),
            deferral_start("req-2", time_ns=now),
            batch=sample_batch(["req-1"]),
        )
    harness.stalls[EngineKey("", "1")] = (
        Stall(StallKind.CALL_STUCK, 1, now / 1e9 - 60, "a call does not return"),
    )
    harness.ended_stalls[EngineKey("", "1")] = (
        Stall(StallKind.STEP_STUCK, 1, now / 1e9 - 300, "no step ended for 200 s", until=now / 1e9 - 100),
    )
    gone = harness.source("7")
    harness.append(gone, transfer_failure("req-4", time_ns=now))
    harness.disconnect(gone)
    for line in (
        f"quarantine add {_PEER} --ttl 1h",
        "inject-fault 0 --mode slow --delay 2s --ttl 1h",
        "pause 1",
    ):
        assert both.live(line).exit_code == 0, line
    harness.engine("2", refuse=lambda _: "it does not fit", supported=("kv_load_failure",))


# What is counted until now, and when a call was answered, or of when its answer is.
# A slot of five seconds is told once it has ended.
_MOVING = {"slots", "at", "duration", "wait", "retires", "begins", "seconds", "harm"}
# A column is as wide as its widest age: the tenth second makes it wider.
_PADDED = re.compile(r"\bTIME +")
_AGES = re.compile(r"\b[\d.]+ ?(µs|ms|[smhd])\b|\d\d:\d\d:\d\d")
# Others write to the same disk.
_SIZES = re.compile(r"\b[\d.]+ [KMGT]iB\b")
_BUNDLE = re.compile(r"--bundle \S+ ")


def _steady_text(text: str) -> str:
    """Return *text* without ages and sizes, and without the file that command lines in it name."""
    return _BUNDLE.sub("", _PADDED.sub("TIME ", _AGES.sub("TIME", _SIZES.sub("SIZE", text))))


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if key not in _MOVING}
    if isinstance(value, list):
        return [_steady(item) for item in value]
    return _steady_text(value) if isinstance(value, str) else value


@pytest.mark.parametrize("line", [line for lines in READING.values() for line in lines])
def test_a_bundle_answers_as_its_agent(taken: _Taken, line: str) -> None:
    """The same document or the same text, and the same exit code; the time stands on stderr."""
    more = () if line.startswith(("top", "export")) else ("-o", "json")
    live, bundled = taken.live(line, *more), taken.bundled(line, *more)
    assert bundled.exit_code == live.exit_code, bundled.output
    assert bundled.stderr.startswith("as of ")
    if more:
        assert _steady(json.loads(bundled.stdout)) == _steady(json.loads(live.stdout))
    else:
        assert _steady_text(bundled.stdout) == _steady_text(live.stdout)
    assert live.stdout


@pytest.mark.parametrize("line", [*REFUSED.values(), "get engines --watch", "get events -w"])
def test_what_a_bundle_cannot_do_is_refused(taken: _Taken, tmp_path: Path, line: str) -> None:
    """With a sentence and exit code 2; nothing is printed as done."""
    manifest = tmp_path / "p.json"
    manifest.write_text(taken.live("get policy p -o json").stdout)
    editor = {"EDITOR": "sed -i s/recompute/auto/"}
    result = taken.bundled(line.replace("MANIFEST", str(manifest)), env=editor)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "a bundle" in result.stderr


@pytest.mark.parametrize("line", [*REFUSED.values(), *(line for lines in READING.values() for line in lines)])
def test_hints_name_the_bundle_where_it_answers(line: str) -> None:
    """A command that a bundle refuses is hinted for the agent itself; those that take a copy are hinted nowhere."""
    found = hinted(f"agentctl {line}", "agentctl --bundle b")
    assert ("--bundle" in found) == (line not in REFUSED.values() or line == "bundle")


def test_ages_are_those_of_its_time(taken: _Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week later the tables say what they said then."""
    then = taken.live("get events").stdout
    later = time.time() + 7 * 86_400
    monkeypatch.setattr("penstock.agent.ctl.moments.time.time", lambda: later)
    result = taken.bundled("get events")
    assert "7d ago" in result.stderr
    assert _steady_text(result.stdout) == _steady_text(then)
    assert re.search(r"\b7d\b", result.stdout) is None


def test_an_agent_and_a_bundle_are_one_too_many(taken: _Taken) -> None:
    """A command line that names both is wrong."""
    result = taken.live("get engines", "--bundle", str(taken.file), "--address", "unix:///nowhere")
    assert result.exit_code == 2
    assert "give one of them" in result.stderr
    # What stands behind the command overrides what stands before it.
    result = taken.bundled("get engines", "--address", taken.harness.address)
    assert (result.exit_code, result.stderr) == (0, "")
    before = ["--address", "unix:///nowhere", "get", "engines", "--bundle", str(taken.file)]
    assert CliRunner().invoke(cli, before).exit_code == 0


def test_hints_name_the_bundle(taken: _Taken) -> None:
    """A command line in a message can be typed as it is."""
    result = taken.bundled("explain nobody")
    assert result.exit_code == 1
    assert "nobody" in result.stderr


def test_the_bundle_goes_to_a_pipe(taken: _Taken) -> None:
    """``-f -`` writes it to standard output and the sentence to standard error."""
    result = taken.live("bundle -f -")
    assert result.exit_code == 0, result.stderr
    assert result.stdout_bytes.startswith(b"PK")
    assert "wrote to standard output" in result.stderr


def test_where_temporary_files_are_far_down(
    taken: _Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's path is short, TMPDIR may be long; nothing stays in either place."""
    far = tmp_path / ("d" * 100)
    far.mkdir()
    made: list[Path] = []
    mkdtemp = tempfile.mkdtemp

    def noted(*args: Any, **options: Any) -> str:
        found = mkdtemp(*args, **options)
        made.append(Path(found))
        return found

    monkeypatch.setattr(tempfile, "tempdir", str(far))
    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    assert taken.bundled("get engines").exit_code == 0
    assert len(made) == 2
    assert not any(each.exists() for each in made)


def test_one_that_takes_too_long_to_open_is_refused(taken: _Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sentence that says what to do."""
    monkeypatch.setattr("penstock.agent.evidence.served._OPEN_SECONDS", 0.0)
    result = taken.bundled("get events")
    assert result.exit_code
    assert "to count; take one with --max-size or --since" in result.stderr


def test_a_page_that_cannot_be_written_yet_is_left_out(tmp_path: Path) -> None:
    """The metrics page while the log is replayed; the rest of the evidence is taken."""

    def fail() -> bytes:
        raise StateError("the log is being replayed")

    file = tmp_path / "b.penstock"
    with quiet_logs(), short_directory() as directory, running_admin(directory) as harness:
        harness.pages.update({"metrics.txt": fail, "configuration.json": lambda: b"{}"})
        made = _Taken(harness, file).live("bundle", "-f", str(file))
    assert made.exit_code == 0, made.output
    with zipfile.ZipFile(file) as archive:
        assert {"configuration.json", "state.json"} <= set(archive.namelist())
        assert "metrics.txt" not in archive.namelist()
