"""kubectl's conventions: names and short names, positions of ``-o``, ``describe``, the plugin."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.proto.v1.snapshot_pb2 import Snapshot
from penstock.proto.version import __version__

from tests.support.agent.batches import PEER, deferral_end, transfer_failure
from tests.support.agent.stories import closed, outcome
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

_SECOND = 10**9


@pytest.fixture
def filled(harness: AdminHarness) -> AdminHarness:
    """Two engines, the second of a named server; a peer, a request and a policy."""
    now = time.time_ns()
    core = harness.source("0")
    harness.source("1", server="prefill", labels={"role": "prefill"})
    harness.snapshot(core, Snapshot(time_unix_nano=now, engine={"model": "tiny"}))
    harness.append(
        core,
        transfer_failure("req-1", time_ns=now),
        outcome("req-1", time_ns=now + 1),
        closed("req-1", time_ns=now + 2, arrival_time_unix_nano=now),
    )
    harness.engine("0", supported=("kv_load_failure", "peer_quarantine"))
    return harness


@pytest.mark.parametrize(
    ("spellings", "kind"),
    [
        (("engines", "engine", "eng"), "engine"),
        (("peers", "peer", "pe"), "peer"),
        (("requests", "request", "req"), "request"),
        (("events", "event", "ev"), "event"),
        (("policy", "policies", "pol"), "policy"),
        (("audit",), "audit"),
    ],
)
def test_names_of_kinds(
    filled: AdminHarness, agentctl: Agentctl, spellings: tuple[str, ...], kind: str
) -> None:
    """Plural, singular and short names are equal; ``-o name`` prints arguments of the same command."""
    agentctl("set-policy", "gold", "--all", "--kv-load-failure", "recompute")
    printed = {agentctl("get", spelling, "-o", "name").stdout for spelling in spellings}
    assert len(printed) == 1
    names = printed.pop().splitlines()
    assert names
    assert all(name.startswith(f"{kind}/") for name in names)
    if kind not in {"event", "audit"}:
        again = agentctl("get", names[-1], "-o", "name")
        assert (again.exit_code, again.stdout) == (0, f"{names[-1]}\n")


def test_an_engine_by_its_name(filled: AdminHarness, agentctl: Agentctl) -> None:
    """A name selects its row, in JSON the object itself; an unknown name exits with 1."""
    assert [line.split()[0] for line in agentctl("get", "engine", "prefill/1").stdout.splitlines()] == [
        "ENGINE",
        "prefill/1",
    ]
    assert json.loads(agentctl("get", "engine", "0", "-o", "json").stdout)["key"]["engine"] == "0"
    assert len(json.loads(agentctl("get", "engine", "0", "prefill/1", "-o", "json").stdout)["engines"]) == 2
    missing = agentctl("get", "engine", "9")
    assert (missing.exit_code, missing.stdout, missing.stderr) == (
        1,
        "",
        "agentctl: engine '9' not found; 'agentctl get engines' lists them\n",
    )
    some = agentctl("get", "engine", "0", "prefil/1", "--no-headers")
    assert (some.exit_code, some.stdout.split()[0]) == (1, "0")
    assert some.stderr == "agentctl: engine 'prefil/1' not found; did you mean prefill/1?\n"
    both = agentctl("get", "engine", "0", "-l", "role=decode")
    assert (both.exit_code, "exclude each other" in both.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("peer", PEER), True),
        (("peer", "nobody:1"), False),
        (("request", "req-1"), True),
        (("request", "req-9"), False),
        (("policy", "gold"), True),
        (("policy", "silver"), False),
    ],
)
def test_others_by_their_names(
    filled: AdminHarness, agentctl: Agentctl, arguments: tuple[str, ...], found: bool
) -> None:
    """Peers, requests and policies are selected by name as engines are."""
    agentctl("set-policy", "gold", "--all", "--kv-load-failure", "recompute")
    result = agentctl("get", *arguments)
    assert (result.exit_code, arguments[1] in result.stdout) == ((0, True) if found else (1, False))
    assert f"{arguments[0]} {arguments[1]!r} not found" in result.stderr or found


def test_an_id_in_full_is_no_prefix(harness: AdminHarness, agentctl: Agentctl) -> None:
    """A full id selects one request; any other text selects the ids that begin with it."""
    now = time.time_ns()
    core = harness.source("0")
    harness.append(core, *(transfer_failure(name, time_ns=now) for name in ("req-1", "req-10", "cmpl-7")))
    assert agentctl("get", "request", "req-1", "-o", "name").stdout == "request/req-1\n"
    found = agentctl("get", "request", "req", "req-10", "-o", "name").stdout
    assert set(found.split()) == {"request/req-1", "request/req-10"}


def test_formats_before_and_behind(filled: AdminHarness, agentctl: Agentctl) -> None:
    """``-o`` before and behind the command is equal; the nearer one counts; an unsupported one is refused."""
    behind = json.loads(agentctl("get", "policy", "-o", "json").stdout)
    assert json.loads(agentctl("-o", "json", "get", "policy").stdout) == behind
    assert json.loads(agentctl("get", "-o", "json", "policy").stdout) == behind
    assert yaml.safe_load(agentctl("-o", "json", "get", "engine", "0", "-o", "yaml").stdout)["connected"]
    assert json.loads(agentctl("-o", "json", "version").stdout)["clientVersion"] == __version__
    assert agentctl("get", "engines", "-o=name", "-l=role=decode").stdout == "engine/0\n"
    assert (
        agentctl("get", "engines", "-l=role=prefill", "-o=jsonpath={.items[*].name}").stdout == "prefill/1\n"
    )
    assert json.loads(agentctl("-o=json", "get", "policy").stdout) == behind
    for arguments, words in (
        (("-o", "json", "top"), "agentctl top has no option --output"),
        (("-o", "name", "doctor"), "'name' is not one of 'table', 'wide', 'json', 'yaml', jsonpath=TEMPLATE"),
        (("-o", "xml", "doctor"), "'xml' is not one of"),
        (
            ("get", "engines", "-o", "jsonpath={.a"),
            "the JSONPath cannot be read: the brace of '{.a' is not closed",
        ),
        (("get", "engines", "--count", "1"), "--count ends a --watch; give both"),
    ):
        result = agentctl(*arguments)
        assert (result.exit_code, words in result.stderr) == (2, True), result.stderr


def test_tables_without_headers(filled: AdminHarness, agentctl: Agentctl) -> None:
    """Every list has ``--no-headers``."""
    agentctl("set-policy", "gold", "--all", "--kv-load-failure", "recompute")
    agentctl("quarantine", "add", PEER, "0", "--timeout", "1s")
    for what in (
        ("get", "engines"), ("get", "peers"), ("get", "requests"), ("get", "events"), ("get", "policy"),
        ("get", "audit"), ("get", "policy", "--effective", "0"), ("quarantine", "list"),
    ):  # fmt: skip
        for output in ("table", "wide"):
            header, *rows = agentctl(*what, "-o", output).stdout.splitlines()
            bare = agentctl(*what, "-o", output, "--no-headers").stdout.splitlines()
            assert header == header.upper()
            assert len(rows) == len(bare) > 0, what
            assert bare[0].split()[0] != header.split()[0]


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("get", "engines", "-o", "jsonpath={.items[*].name}"), "0 prefill/1\n"),
        (("get", "engines", "-o", "jsonpath={.engines[*].key.engine}"), "0 1\n"),
        (("get", "engine", "prefill/1", "-o", "jsonpath={.name} {.connected}"), "prefill/1 true\n"),
        (("get", "engines", "-o", "jsonpath={.items[?(@.role=='decode')].name}"), "0 prefill/1\n"),
        (("get", "peers", "-o", 'jsonpath={range .items[*]}{.name}{"\\n"}{end}'), f"{PEER}\n"),
        (("get", "policies", "-o", "jsonpath={.items[*].metadata.name}"), "gold\n"),
        (("get", "policy", "gold", "-o", "jsonpath={.spec.kvLoadFailure.action}"), "recompute\n"),
        (("-o", "jsonpath={.requestId}", "explain", "req-1"), "req-1\n"),
        (("version", "-o", "jsonpath={.clientVersion}"), f"{__version__}\n"),
    ],
)
def test_jsonpath_of_what_commands_print(
    filled: AdminHarness, agentctl: Agentctl, arguments: tuple[str, ...], printed: str
) -> None:
    """Lists have ``.items`` and ``.name`` as kubectl's do, beside the fields of the JSON."""
    agentctl("set-policy", "gold", "--all", "--kv-load-failure", "recompute")
    result = agentctl(*arguments)
    assert (result.exit_code, result.stdout) == (0, printed), result.stderr


def test_versions(filled: AdminHarness, agentctl: Agentctl) -> None:
    """The client's version is first, and is printed without an agent, too."""
    assert agentctl("version").stdout.splitlines()[0] == f"Client version: {__version__}"
    assert agentctl("version").stdout.splitlines()[1].startswith("Agent version: ")
    client = agentctl("version", "--client", "--address", "nonsense")
    assert (client.exit_code, client.stdout) == (0, f"Client version: {__version__}\n")
    away = agentctl("version", "--address", "/nowhere")
    assert (away.exit_code, away.stdout) == (1, f"Client version: {__version__}\n")


def test_events_stand_in_the_order_of_time(filled: AdminHarness, agentctl: Agentctl) -> None:
    """Events of all engines are sorted by time, the newest last, in every format."""
    now = time.time_ns()
    late = filled.source("1", server="prefill")
    filled.append(late, transfer_failure("old", time_ns=now - 100 * _SECOND))
    rows = agentctl("get", "events", "--kind", "transfer_failure").stdout.splitlines()[1:]
    assert [row.split()[3] for row in rows] == ["old", "req-1"]
    events = json.loads(agentctl("get", "events", "-o", "json").stdout)["events"]
    times = [item["event"]["time"] for item in events]
    assert times == sorted(times)


def test_a_peer_in_full(filled: AdminHarness, agentctl: Agentctl) -> None:
    """``describe peer`` has each engine's view, the quarantine and the last failures."""
    now = time.time_ns()
    filled.append(
        filled.source("1", server="prefill"),
        transfer_failure("req-2", time_ns=now),
        deferral_end("req-3", start_ns=now - 10**9, time_ns=now),
    )
    agentctl("quarantine", "add", PEER, "0", "--reason", "INC-7", "--timeout", "1s")
    lines = agentctl("describe", "pe", PEER).stdout.splitlines()
    assert lines[0] == f"Peer: {PEER}"
    text = "\n".join(lines)
    for part in (
        "Engine 0:",
        "Engine prefill/1:",
        "Now: unreachable for ",
        f": peer {PEER} refuses connections: ",
        "Waits (p50/p99): ",
        "handshake/refused 1",
        "INC-7",
        "request req-2: kv handshake",
    ):
        assert part in text
    found = json.loads(agentctl("describe", "peer", PEER, "-o", "json").stdout)
    assert [len(found[name]) for name in ("engines", "quarantines", "failures")] == [2, 1, 2]
    missing = agentctl("describe", "peer", "nobody:1")
    assert (missing.exit_code, "peer 'nobody:1' not found" in missing.stderr) == (1, True)


def test_a_policy_in_full(filled: AdminHarness, agentctl: Agentctl) -> None:
    """``describe policy`` has spec, generation, author, engines and history."""
    agentctl("set-policy", "gold", "-l", "role=decode", "--kv-load-failure", "recompute")
    agentctl(
        "set-policy", "gold", "--kv-load-failure", "fail", "--priority", "200", "--reason", "INC-8", "--wait"
    )
    text = agentctl("describe", "policy", "gold").stdout
    for part in (
        "Policy: gold",
        "Generation: 2",
        "Priority: 200",
        "Selector: role=decode",
        "Expires: never",
        "penstock.dev/reason=INC-8",
        "kvLoadFailure.action = fail",
        "In force: ",
        "0: in force",
        "Audit:",
        "INC-8",
    ):
        assert part in text, part
    assert re.search(r"^Changed: \d+s ago by .+@.+$", text, re.MULTILINE)
    found = json.loads(agentctl("describe", "policy", "gold", "-o", "json").stdout)
    assert found["policy"]["spec"]["kvLoadFailure"] == {"action": "fail"}
    assert [entry["newGeneration"] for entry in found["audit"]] == [2, 1]
    assert found["engines"][0]["inSync"]
    assert agentctl("describe", "policy", "silver").exit_code == 1


def test_a_request_is_described_as_it_is_explained(filled: AdminHarness, agentctl: Agentctl) -> None:
    """``describe request`` prints what ``explain`` prints, in every format."""
    for output in ("table", "json"):
        described = agentctl("describe", "request", "req-1", "-o", output)
        assert (described.exit_code, described.stdout) == (
            0,
            agentctl("explain", "req-1", "-o", output).stdout,
        )


def test_policies_go_out_and_come_back_in(filled: AdminHarness, agentctl: Agentctl, tmp_path: Path) -> None:
    """``get`` and ``apply --atomic`` do what the hidden ``export`` and ``import`` do."""
    for name in ("p", "q"):
        agentctl("set-policy", name, "--all", "--kv-load-failure", "recompute")
    bundle = tmp_path / "all.yaml"
    bundle.write_text(agentctl("get", "policy", "--by-hand", "-o", "yaml").stdout)
    for name in ("p", "q"):
        agentctl("delete", "policy", name)
    result = agentctl("apply", "--atomic", "--all", "-f", str(bundle))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == ["policy p created, generation 3", "policy q created, generation 3"]
    bad = [document("p", priority=7), document("x", kvLoadFailure=action("recmpute"))]
    bundle.write_text(yaml.safe_dump_all(bad))
    assert agentctl("apply", "--atomic", "--all", "-f", str(bundle)).exit_code == 2
    assert agentctl("get", "policy", "p", "-o", "jsonpath={.spec.priority}").stdout.strip() in {"", "100"}
    help_text = agentctl("--help").stdout
    assert not re.search(r"^  (export|import) ", help_text, re.MULTILINE)
    assert agentctl("export").exit_code == 0
    assert agentctl("export", "--help").exit_code == agentctl("import", "--help").exit_code == 0


def test_the_plugin_of_kubectl() -> None:
    """Usage lines, errors and hints have ``kubectl penstock``; the second script completes."""
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]

    def plugin(name: str, *arguments: str) -> tuple[int, str, str]:
        module, _, function = scripts[name].partition(":")
        code = f"import sys; from {module} import {function}; sys.argv[0] = {name!r}; {function}()"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=120
        )
        return done.returncode, done.stdout, done.stderr

    code, out, _ = plugin("kubectl-penstock", "get", "engines", "--help")
    assert (code, out.splitlines()[0]) == (0, "Usage: kubectl penstock get engines [OPTIONS] [ENGINE]...")
    code, _, err = plugin("kubectl-penstock", "get", "bogus")
    assert (code, err.startswith("kubectl penstock: kubectl penstock get has no 'bogus'; use one of")) == (
        2,
        True,
    )
    code, _, err = plugin("kubectl-penstock", "--address", "/nowhere", "get", "engines")
    assert (code, "'kubectl penstock --address /nowhere doctor' says why" in err) == (1, True)
    code, out, _ = plugin("kubectl_complete-penstock", "get", "pe")
    assert (code, [line.split("\t")[0] for line in out.splitlines()]) == (0, ["peers", ":4"])
    code, out, _ = plugin("kubectl_complete-penstock", "describe", "")
    assert [line.split("\t")[0] for line in out.splitlines()] == ["engine", "peer", "policy", "request", ":4"]


def test_the_root_of_the_help_names_the_exit_codes() -> None:
    """The help of agentctl has the exit codes, those of diff included."""
    text = CliRunner().invoke(cli, ["--help"]).stdout
    assert "diff: 0 same, 1 different" in " ".join(text.split())
