"""The commands of the guide to agentctl do what it says, one after the other, against a real agent's services."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner
from penstock.agent.ctl.commands.policies.fields import FIELDS
from penstock.agent.ctl.main import cli
from penstock.proto.v1.common_pb2 import ROLE_BOTH
from penstock.proto.v1.events_pb2 import SUSPECT_REASON_FAILED_READ
from penstock.proto.v1.policy_pb2 import StackDump
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.admin_server import AdminHarness, running_admin
from tests.support.agent.agent import short_directory
from tests.support.agent.batches import deferral_start, event, transfer_failure
from tests.support.agent.quiet import quiet_logs
from tests.support.agent.stories import closed, outcome
from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import Iterator

_GUIDES = Path(__file__).parents[2] / "docs" / "guides"
_GUIDE = (_GUIDES / "agentctl.md").read_text()
_TYPED = re.compile(r"^\$ agentctl ([^\n]*)", re.MULTILINE)
# The log of this test begins with it.
_NAMES = {"ENGINE": "0", "OTHER": "1", "REQUEST": "req-1", "21:43": "0s"}


@pytest.fixture
def harness() -> Iterator[AdminHarness]:
    """Serve two engines; one has had trouble with a request, and one that waits."""
    now = time.time_ns()
    with quiet_logs(), short_directory() as directory, running_admin(directory) as running:
        first, second = running.source("0"), running.source("1")
        for key, core in (("0", first), ("1", second)):
            facts = {
                "model": "tiny",
                "compatibility_hash": "a",
                "vllm_version": key,
                "kv_connector": "NixlConnector",
                "role": ROLE_BOTH,
            }
            # Of this moment: `doctor` takes what is a second late for a clock that is behind.
            running.engine(key, stacks=StackDump(process="engine-core", pid=1))
            leases = {"count": 1, "blocks": 4, "oldest_start_time_unix_nano": now}
            running.snapshot(core, Snapshot(time_unix_nano=time.time_ns(), engine=facts, leases=leases))
        running.append(
            first,
            transfer_failure("req-1", time_ns=now),
            outcome("req-1", time_ns=now),
            closed("req-1", time_ns=now, arrival_time_unix_nano=now),
            deferral_start("req-2", time_ns=now),
        )
        # In a drill, which `get suspects` marks.
        suspected = event("answer_suspected", "req-3", time_ns=now, reason=SUSPECT_REASON_FAILED_READ)
        suspected.rehearsal = True
        running.append(first, suspected, closed("req-3", time_ns=now, arrival_time_unix_nano=now))
        yield running


def test_the_guide_can_be_typed_from_its_first_line_to_its_last(
    harness: AdminHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command succeeds and prints something; what is JSON can be read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CONTEXTS", str(tmp_path / "contexts.yaml"))
    monkeypatch.setenv("KUBE_EDITOR", "sed -i s/recompute/fail/")
    policies = tmp_path / "policies"
    policies.mkdir()
    selector = {"matchLabels": {"role": "decode"}}
    decode = document("decode-default", selector=selector, kvLoadFailure=action("recompute"))
    (policies / "decode.yaml").write_text(yaml.safe_dump(decode))
    commands = [
        [_NAMES.get(word, word) for word in shlex.split(line, comments=True)]
        for line in _TYPED.findall(_GUIDE)
    ]
    assert len(commands) > 25
    for command in commands:
        endless = (command[0] in {"watch", "top"} or "-w" in command) and "--count" not in command
        arguments = [*command, *(["--count", "1"] if endless else [])]
        result = CliRunner().invoke(cli, ["--address", harness.address, *arguments])
        # What is compared may differ, and something may be wrong.
        codes = {"diff": {0, 1}, "doctor": {0, 1}, "diagnose": {0, 1, 3}}.get(command[0], {0})
        assert result.exit_code in codes, (command, result.stdout, result.stderr)
        assert result.output, command
        if command[-2:] == ["-o", "json"]:
            printed = json.loads(result.stdout)
            if command[:2] == ["describe", "engine"]:
                (tmp_path / "other.json").write_text(json.dumps(printed))


def test_every_flag_of_set_policy_is_explained_in_a_guide() -> None:
    """Here, or in the guide to load failures."""
    text = _GUIDE + (_GUIDES / "kv-load-failures.md").read_text()
    assert {
        field.flag for field in FIELDS if field.flag not in text and f"`{field.flag[2:]}`" not in text
    } == set()


def test_every_command_is_in_a_guide() -> None:
    """Every command is in the guide."""
    text = "".join(guide.read_text() for guide in _GUIDES.glob("*.md"))
    names = [name for name in cli.list_commands(None) if f"agentctl {name}" not in text]  # type: ignore[arg-type]
    assert names == []
