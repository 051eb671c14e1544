"""The page of a bundle: it says what ``agentctl --bundle`` says, at the bundle's time, and changes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from tests.support.agent.quiet import quiet_logs
from tests.support.incidents.asking import asked
from tests.support.incidents.table import INCIDENTS
from tests.support.page.bundle_page import bundle_page
from tests.support.page.tab import Tab, ask, write

if TYPE_CHECKING:
    from collections.abc import Iterator

INCIDENT = INCIDENTS["fail-everywhere"]
_AGE = re.compile(r"\d+[smhd]")
_COMMAND = re.compile(r"agentctl [^\"'`]*")


def _age(cells: list[str]) -> str:
    """Return the first cell that is an age."""
    return next(cell for cell in cells if _AGE.fullmatch(cell))


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """Serve the page of a recorded incident."""
    with quiet_logs(), bundle_page(INCIDENT) as address:
        yield address


def document(*arguments: str) -> Any:
    """Return what a command says of the bundle."""
    return json.loads(asked(INCIDENT, *arguments, "-o", "json").stdout)


def test_the_screen_is_of_the_bundle(page: str) -> None:
    """Verdict, peers, policy, engines and failures are those of the commands; the source says that it is a bundle."""
    with Tab(page) as tab:
        hello = tab.until("hello").data
        screen = tab.until(
            "screen", lambda found: found["verdict"]["causes"] and found["policy"]["rows"]
        ).data
        while not any(each.event == "earlier" for each in tab.seen):
            assert tab.next() is not None
    said = document("diagnose", "--since", INCIDENT.window)
    assert (hello["source"], hello["name"], hello["writable"]) == ("bundle", INCIDENT.path.name, False)
    assert screen["verdict"]["sentence"] == said["sentence"]
    assert screen["verdict"]["command"].endswith(f"diagnose --since {INCIDENT.window}")
    assert [cause["kind"] for cause in screen["verdict"]["causes"]] == [
        each["kind"] for each in said["causes"]
    ]
    peers = {each["peer"]["address"] for each in document("get", "peers", "--state", "all")["peers"]}
    assert {row["peer"] for row in screen["peers"]["rows"]} <= peers
    assert [row["policy"] for row in screen["policy"]["rows"]] == ["no-recompute"]
    earlier = [entry for each in tab.seen if each.event == "earlier" for entry in each.data["entries"]]
    failed = document("get", "events", "--kind", "transfer_failure")["events"]
    assert len([entry for entry in earlier if entry["kind"] == "transfer_failure"]) == len(failed)


def test_its_signals_are_those_of_the_log(page: str) -> None:
    """No look at a queue is in a bundle; what ended and how long it took to a first token is."""
    with Tab(page) as tab:
        said = tab.until("signals").data
    slots = document("signals")["slots"]
    ended = [each for each in (0 if rate is None else rate * 5 for rate in said["requests"]) if each]
    assert ended == pytest.approx([slot["requests"] for slot in slots if slot["requests"]])
    assert sum(ended) > 10
    assert any(said["ttftP99"])
    assert not any(said["running"])
    assert said["from"] == datetime.fromisoformat(slots[0]["start"]).timestamp() * 1000


def test_its_time_stands_still(page: str) -> None:
    """The screen, its data, the diagnosis and every pulse are of the moment of the bundle."""
    with Tab(page) as tab:
        screen = tab.until("screen", lambda found: found["verdict"]["causes"]).data
        tab.until("pulse", lambda found: found["dataTime"])
        pulses = [each.data for each in tab.seen if each.event == "pulse"]
    moment = screen["now"]
    assert {each["now"] for each in pulses} == {moment}
    assert {screen["dataTime"], round(screen["verdict"]["computed"]), pulses[-1]["dataTime"]} == {moment}
    with zipfile.ZipFile(INCIDENT.path) as archive:
        taken = datetime.fromisoformat(json.loads(archive.read("state.json"))["time"])
    assert moment == round(taken.timestamp() * 1000)


@pytest.mark.parametrize(
    ("kind", "query", "command"),
    [
        ("policy", {"name": "no-recompute"}, "describe policy no-recompute"),
        ("peer", {"engine": "decode/0", "peer": "PEER"}, "describe peer PEER"),
        ("engine", {"key": "decode/0"}, "describe engine decode/0"),
    ],
)
def test_a_detail_is_what_the_command_says(page: str, kind: str, query: dict[str, str], command: str) -> None:
    """Line by line, with ages of the bundle's time; the detail's own command reads the bundle."""
    peer = document("diagnose")["causes"][1]["peers"][0]
    found = ask(page, f"/api/{kind}", **{name: value.replace("PEER", peer) for name, value in query.items()})
    assert found.status == 200
    words = command.replace("PEER", peer).split()
    printed = {line.strip() for line in asked(INCIDENT, *words).stdout.splitlines()}
    # Of a policy the manifest follows, which 'get policy' prints.
    texts = [section["text"] for section in found.body["sections"] if section["kind"] == "text"]
    lines = [line.strip() for line in texts[0].splitlines()]
    assert len(lines) > 5
    assert [line for line in lines if line not in printed] == []
    assert found.body["command"] == f"agentctl --bundle {INCIDENT.path.name} {' '.join(words)}"


def test_a_list_is_as_old_as_it_was(page: str) -> None:
    """The ages of policies and events are those that the commands print."""
    lists = {"policies": ("get", "policy", "-o", "wide"), "events": ("get", "events", "--limit", "100")}
    for kind, words in lists.items():
        rows = ask(page, f"/api/{kind}").body["sections"][0]["rows"]
        lines = asked(INCIDENT, *words).stdout.splitlines()[1:]
        assert rows
        assert sorted(_age(row["cells"]) for row in rows) == sorted(_age(line.split()) for line in lines)


def test_each_command_reads_the_bundle_or_is_for_the_agent(page: str) -> None:
    """A command of a row can be typed as it is; one that changes an agent names no bundle."""
    with Tab(page) as tab:
        screen = tab.until("screen", lambda found: found["verdict"]["causes"]).data
    commands = _COMMAND.findall(json.dumps(screen))
    own = [each for each in commands if each.startswith(f"agentctl --bundle {INCIDENT.path.name} ")]
    rest = [each for each in commands if each not in own]
    assert len(own) > 5
    assert rest
    assert all(re.match(r"agentctl (delete policy|quarantine add) ", each) for each in rest), rest


def test_nothing_is_written(page: str) -> None:
    """Neither a policy nor an order, whoever asks."""
    for kind in ("policy", "pause", "quarantine"):
        assert write(page, kind, {"dryRun": True, "reason": "x"}).status == 403


def test_it_is_as_safe_as_that_of_an_agent(page: str) -> None:
    """Served on loopback, to its own document only, without a script of another origin."""
    assert page.startswith("http://127.0.0.1:")
    assert (
        ask(page, "/")
        .headers["Content-Security-Policy"]
        .startswith("default-src 'self'; frame-ancestors 'none'")
    )
    assert ask(page, "/", {"Host": "evil.example.com"}).status == 403
    assert ask(page, "/api/policies", {"Origin": "http://evil.example.com"}).status == 403
    assert ask(page, "/api/stream", {"Sec-Fetch-Site": "cross-site"}).status == 403


def test_the_command_serves_until_it_is_ended(tmp_path: Path) -> None:
    """It prints the address, and leaves nothing behind."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "NO_COLOR": "1"}
    agentctl = str(Path(sys.executable).with_name("agentctl"))
    command = [agentctl, "page", "--since", "40s", "--bundle", str(INCIDENT.path)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        try:
            page = running.stdout.readline().strip().rstrip("/")
            assert [each.name.startswith("penstock-bundle-") for each in tmp_path.iterdir()] == [True]
            assert ask(page, "/api/policies").status == 200
        finally:
            running.send_signal(signal.SIGTERM)
        said = running.stderr.read()
        assert running.wait(60) == 130, said
    assert said.startswith("as of ")
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_served_is_said() -> None:
    """No bundle, a bundle that is none, a port that is taken."""
    runner = CliRunner(env={"AGENTCTL_ADDRESS": "", "NO_COLOR": "1"})
    none = runner.invoke(cli, ["page", "--since", "5m"])
    assert (none.exit_code, none.stdout) == (2, "")
    assert "give --bundle FILE" in none.stderr
    other = runner.invoke(cli, ["page", "--bundle", __file__])
    assert other.exit_code == 1
    assert "cannot be opened" in other.stderr
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        refused = runner.invoke(cli, ["page", "--port", port, "--bundle", str(INCIDENT.path)])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"port {port} of 127.0.0.1 cannot be bound; give another --port" in refused.stderr
