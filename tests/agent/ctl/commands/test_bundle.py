"""agentctl export and import."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.policy.policies import action, document

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_what_was_exported_can_be_imported(harness: AdminHarness, agentctl: Agentctl, output: str) -> None:
    """An import of an export restores the policies in one change; --wait waits for the engines."""
    harness.engine("0")
    for name in ("p", "q"):
        agentctl("set-policy", name, "--all", "--kv-load-failure", "recompute", "--reason", "why")
    before = [policy.manifest for policy in harness.store.policies()]
    printed = agentctl("export", "-o", output).stdout
    for name in ("p", "q"):
        agentctl("delete", "policy", name)
    result = agentctl("import", "--all", "-f", "-", "--wait", "--reason", "restore", stdin=printed)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:2] == ["policy p created, generation 3", "policy q created, generation 3"]
    assert lines[-1].startswith("engine 0 acknowledged after ")
    assert [policy.manifest for policy in harness.store.policies()] == before


def test_an_import_is_all_or_nothing(harness: AdminHarness, agentctl: Agentctl) -> None:
    """One invalid policy refuses the whole import and is named; a dry run changes nothing."""
    harness.engine("0")
    bad = yaml.safe_dump_all([document("a"), document("b", kvLoadFailure=action("recmpute"))])
    refused = agentctl("import", "--all", "-f", "-", stdin=bad)
    assert (refused.exit_code, harness.store.policies()) == (2, ())
    assert "b" in refused.stderr
    assert "recmpute" in refused.stderr
    good = yaml.safe_dump_all([document("a"), document("b", priority=200)])
    dry = agentctl("import", "--all", "-f", "-", "--dry-run", "--wait", stdin=good)
    assert dry.exit_code == 0, dry.stderr
    assert "policy b created, generation 1 (dry run: nothing was changed)" in dry.stdout
    assert "kvLoadFailure.action   vllm's own   recompute (b)" in dry.stdout
    assert harness.store.policies() == ()


def test_a_program_reads_what_became_of_an_import(harness: AdminHarness, agentctl: Agentctl) -> None:
    """``-o json`` has each policy, with --wait the rollout; an engine's refusal sets the exit code."""
    harness.engine("0", refuse=lambda push: "no" if push.schedule else "")
    text = json.dumps({"kind": "List", "items": [document("a")]})
    result = agentctl("import", "--all", "-f", "-", "--wait", "-o", "json", stdin=text)
    assert result.exit_code == 1
    assert "the import is not in force in 1 of 1 engine: 0 refused it" in result.stderr
    both = json.loads(result.stdout)
    assert both["change"]["policies"] == [{"name": "a", "generation": 1, "result": "created"}]
    assert both["rollout"]["engines"][0]["state"] == "refused"
