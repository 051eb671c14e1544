"""agentctl apply and set-policy -f: files and directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.policy.policies import action, document, manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]


def _names(harness: AdminHarness) -> list[str]:
    return [policy.manifest.name for policy in harness.store.policies()]


def _write(path: Path, *documents: object) -> None:
    path.write_text(yaml.safe_dump_all(documents))


def test_a_directory_is_its_manifests(harness: AdminHarness, agentctl: Agentctl, tmp_path: Path) -> None:
    """Manifests are read in the order of file names; dot files and files of other suffixes are skipped."""
    _write(tmp_path / "b.yml", document("b"))
    _write(tmp_path / "a.yaml", document("a1"), document("a2"))
    (tmp_path / ".hidden.yaml").write_text("{")
    (tmp_path / "README.md").write_text("{")
    result = agentctl("apply", "--all", "-f", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "policy a1 created, generation 1",
        "policy a2 created, generation 1",
        "policy b created, generation 1",
    ]
    again = agentctl("apply", "--all", "-f", str(tmp_path / "a.yaml"), "-f", str(tmp_path / "b.yml"))
    assert [line.split()[2] for line in again.stdout.splitlines()] == ["unchanged,"] * 3


def test_nothing_is_applied_if_one_is_wrong(
    harness: AdminHarness, agentctl: Agentctl, tmp_path: Path
) -> None:
    """One invalid manifest of several: nothing is applied; the error names the file and the field."""
    _write(tmp_path / "a.yaml", document("a"))
    _write(tmp_path / "b.yaml", document("b", kvLoadFailure=action("recmpute")))
    result = agentctl("apply", "--all", "-f", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == (
        f"agentctl: {tmp_path}/b.yaml: spec.kvLoadFailure.action is 'recmpute'; "
        "use one of recompute, fail, auto; nothing was applied\n"
    )
    assert _names(harness) == []


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no file that ends in .json, .yaml, .yml"),
        ({"a.yaml": "a: ["}, "a.yaml:1: this is not YAML: "),
        ({"a.yaml": b"\xff\xfe\xfd"}, "cannot be read"),
        ({"a.yaml": "[" * 1500}, "a.yaml:1: this is more than 32 levels deep"),
        (
            {"a.yaml": f"a: &a {'x' * 200_000}\nb: [{','.join(['*a'] * 2_000)}]"},
            "a.yaml:1: this is more than 4194304 characters (aliases count as often as they are used); split it",
        ),
        (
            {"a.yaml": yaml.safe_dump(document("x")), "b.json": yaml.safe_dump(document("x"))},
            "'x' is in",
        ),
    ],
)
def test_a_directory_that_cannot_be_used(
    harness: AdminHarness, agentctl: Agentctl, tmp_path: Path, files: dict[str, str | bytes], words: str
) -> None:
    """An unusable directory is one sentence, exit code 2, and nothing is applied."""
    for name, text in files.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    result = agentctl("set-policy", "-f", str(tmp_path))
    assert (result.exit_code, _names(harness)) == (2, [])
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_error_on_the_way_names_what_was_applied(
    harness: AdminHarness, agentctl: Agentctl, tmp_path: Path
) -> None:
    """Each of two policies fits into the store, both do not: the error names the one that was applied."""
    harness.run(harness.store.apply_all([manifest(f"p{n}") for n in range(255)], author="me"))
    _write(tmp_path / "a.yaml", document("a"))
    _write(tmp_path / "b.yaml", document("b"))
    result = agentctl("apply", "--all", "-f", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"agentctl: {tmp_path}/b.yaml: there would be 257 policies")
    assert result.stderr.endswith("; applied before it: a\n")


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_several_changes_are_one_document_for_a_program(
    harness: AdminHarness, agentctl: Agentctl, tmp_path: Path, output: str
) -> None:
    """``-o json`` prints one document of all changes and their rollouts, refusals included."""
    harness.engine("0", refuse=lambda push: "no" if push.schedule else "")
    _write(tmp_path / "a.yaml", document("a"))
    _write(tmp_path / "b.yaml", document("b", ecLoadFailure=action("auto")))
    arguments = ("apply", "--all", "-f", str(tmp_path), "-o", output)
    shown = yaml.safe_load(agentctl(*arguments).stdout)
    assert [(item["name"], item["result"]) for item in shown["items"]] == [("a", "created"), ("b", "created")]
    waited = agentctl(*arguments, "--wait")
    assert waited.exit_code == 1
    items = yaml.safe_load(waited.stdout)["items"]
    assert [item["rollout"]["engines"][0]["state"] for item in items] == ["refused"] * 2
    assert [f"policy {name} is not in force in 1 of 1" in waited.stderr for name in "ab"] == [True] * 2


def test_if_generation_is_compare_and_set(harness: AdminHarness, agentctl: Agentctl, tmp_path: Path) -> None:
    """``--if-generation`` with flags, files and delete: another generation exits with 1 and names it."""
    _write(tmp_path / "p.yaml", document("p"))
    path = str(tmp_path / "p.yaml")
    assert agentctl("apply", "--all", "-f", path, "--if-generation", "0").exit_code == 0
    late = agentctl("set-policy", "p", "--all", "--kv-load-failure", "auto", "--if-generation", "7")
    assert late.exit_code == 1
    assert "generation 1" in late.stderr
    fine = agentctl("set-policy", "p", "--all", "--kv-load-failure", "auto", "--if-generation", "1")
    assert fine.exit_code == 0, fine.stderr
    assert agentctl("apply", "--all", "-f", path, "--if-generation", "1").exit_code == 1
    assert agentctl("delete", "policy", "p", "--if-generation", "1").exit_code == 1
    assert agentctl("delete", "policy", "p", "--if-generation", "2").exit_code == 0
    _write(tmp_path / "q.yaml", document("q"))
    two = agentctl("apply", "--all", "-f", str(tmp_path), "--if-generation", "0")
    assert (two.exit_code, two.stderr) == (
        2, "agentctl: --if-generation takes one policy, not 2\n",
    )  # fmt: skip
