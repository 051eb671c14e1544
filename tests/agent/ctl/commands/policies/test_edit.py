"""``agentctl edit policy``, with programs as editors."""

from __future__ import annotations

import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from penstock.agent.policy.store.interface import OwnedManifest

from tests.support.policy.policies import manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]
    Editor = Callable[[str], Path]


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    """Return a function that installs Python source as the editor and returns its log directory."""
    seen = tmp_path / "seen"
    seen.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("KUBE_EDITOR", "EDITOR", "VISUAL"):
        monkeypatch.delenv(name, raising=False)

    def make(body: str) -> Path:
        program = tmp_path / "editor.py"
        program.write_text(
            "import pathlib, sys\n"
            "path = pathlib.Path(sys.argv[-1]); text = path.read_text()\n"
            f"seen = pathlib.Path({str(seen)!r}); times = len(list(seen.iterdir())) + 1\n"
            "(seen / str(times)).write_text(text + oct(path.stat().st_mode) + oct(path.parent.stat().st_mode))\n"
            f"{body}\n"
        )
        monkeypatch.setenv("KUBE_EDITOR", f"{sys.executable} {program} --wait")
        return seen

    return make


@pytest.fixture(autouse=True)
def _policy(harness: AdminHarness, agentctl: Agentctl) -> None:
    harness.engine("0")
    agentctl("set-policy", "p", "--all", "--kv-load-failure", "recompute", "--reason", "first")


def test_what_is_saved_is_applied(harness: AdminHarness, agentctl: Agentctl, editor: Editor) -> None:
    """The file has mode 0600 and is deleted afterwards; the earlier reason is not in it."""
    seen = editor("path.write_text(text.replace('recompute', 'fail'))")
    result = agentctl("edit", "policy", "p", "--reason", "INC-9", "--wait")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == "policy p changed, generation 2"
    assert agentctl("get", "policy", "p", "-o", "jsonpath={.spec.kvLoadFailure.action}").stdout == "fail\n"
    annotation = r"jsonpath={.metadata.annotations.penstock\.dev/reason}"
    assert agentctl("get", "policy", "p", "-o", annotation).stdout == "INC-9\n"
    text = (seen / "1").read_text()
    assert text.startswith("# Edit the policy below.")
    assert "first" not in text
    assert "status" not in text
    assert text.endswith("0o1006000o40700")
    assert [path.name for path in seen.parent.iterdir() if path.name.startswith("agentctl-edit")] == []


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("", "Edit cancelled, no changes made.\n"),
        ("path.write_text('# nothing\\n' + text + '\\n\\n')", "Edit cancelled, no changes made.\n"),
        ("path.write_text('# gone\\n')", "Edit cancelled, saved file was empty.\n"),
    ],
)
def test_what_is_not_changed_is_not_applied(
    harness: AdminHarness, agentctl: Agentctl, editor: Editor, body: str, sentence: str
) -> None:
    """An unchanged text is not applied, and exits with 0."""
    editor(body)
    result = agentctl("edit", "policy", "p")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", sentence)


def test_a_mistake_opens_again_with_the_reason(
    harness: AdminHarness, agentctl: Agentctl, editor: Editor
) -> None:
    """An invalid or refused text is reopened with the reason in comments above it."""
    seen = editor(
        "changes = [('recompute', '['), ('[', 'recmpute'), ('name: p', 'name: q'), ('name: q', 'name: p'), "
        "('recmpute', 'fail')]\n"
        "path.write_text(text.replace(*changes[times - 1]))"
    )
    result = agentctl("edit", "policy", "p")
    assert result.exit_code == 0, result.stderr
    assert agentctl("get", "policy", "p", "-o", "jsonpath={.spec.kvLoadFailure.action}").stdout == "fail\n"
    for number, reason in (
        (2, "# line "),
        (3, "# spec.kvLoadFailure.action is 'recmpute'; use one of recompute, fail, auto\n#\n"),
        (4, "# metadata.name must stay 'p'"),
        (5, "# spec.kvLoadFailure.action is 'recmpute'"),
    ):
        assert reason in (seen / str(number)).read_text(), number


def test_a_mistake_that_stays_ends_the_edit(
    harness: AdminHarness, agentctl: Agentctl, editor: Editor
) -> None:
    """A mistake that is saved unchanged ends the edit; the text is kept in a file of mode 0600."""
    seen = editor("path.write_text(text.replace('recompute', 'recmpute'))")
    result = agentctl("edit", "policy", "p")
    assert result.exit_code == 1
    assert (
        "Edit cancelled, no valid changes were saved: spec.kvLoadFailure.action is 'recmpute'"
        in result.stderr
    )
    kept = Path(result.stderr.split(" is in ")[-1].strip())
    assert kept.parent == seen.parent
    assert "recmpute" in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_change_meanwhile_wins(harness: AdminHarness, agentctl: Agentctl, editor: Editor) -> None:
    """A concurrent change is not overwritten; the error has the generation."""
    editor("path.write_text(text.replace('recompute', 'fail'))")
    other = agentctl("edit", "policy", "p", "--dry-run")
    assert (other.exit_code, "dry run: nothing was changed" in other.stdout) == (0, True)
    code = (
        "import os\n"
        "from click.testing import CliRunner\n"
        "from penstock.agent.ctl.main import cli\n"
        "done = CliRunner().invoke(cli, ['set-policy', 'p', '--kv-load-failure', 'auto', '--all', '--address', "
        f"{harness.address!r}])\n"
        "assert done.exit_code == 0, done.output\n"
        "path.write_text(text.replace('recompute', 'fail'))"
    )
    editor(code)
    result = agentctl("edit", "policy", "p")
    assert result.exit_code == 1
    assert "generation" in result.stderr
    assert agentctl("get", "policy", "p", "-o", "jsonpath={.spec.kvLoadFailure.action}").stdout == "auto\n"


def test_what_may_not_be_changed_is_not_opened(
    harness: AdminHarness, agentctl: Agentctl, editor: Editor
) -> None:
    """A policy from a file and an unknown policy are refused before the editor starts."""
    seen = editor("")
    assert agentctl("edit", "policy", "q").exit_code == 1
    harness.run(harness.store.replace_files([OwnedManifest(manifest("f"), "file:base.yaml")]))
    result = agentctl("edit", "policy", "f")
    assert (result.exit_code, "belongs to the file base.yaml" in result.stderr) == (1, True)
    assert list(seen.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "words"),
    [("/nowhere/editor", "cannot be started"), ("'", "cannot be started"), ("false", "ended with 1")],
)
def test_an_editor_that_does_not_work(
    agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    """A failing editor is named, and nothing is changed."""
    monkeypatch.setenv("KUBE_EDITOR", program)
    result = agentctl("edit", "policy", "p")
    assert (result.exit_code, words in result.stderr) == (1, True)


def test_an_interrupt_is_the_editors(agentctl: Agentctl, editor: Editor) -> None:
    """SIGINT does not end agentctl while the editor runs; afterwards it does."""
    before = signal.getsignal(signal.SIGINT)
    editor(
        "import os, signal\n"
        "inherited = signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "path.write_text(text.replace('recompute', 'fail') if inherited else '')"
    )
    result = agentctl("edit", "policy", "p")
    assert (result.exit_code, result.stderr) == (0, "")
    assert agentctl("get", "policy", "p", "-o", "jsonpath={.spec.kvLoadFailure.action}").stdout == "fail\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_an_editor_that_is_given_up_after_a_mistake(agentctl: Agentctl, editor: Editor) -> None:
    """The text of the first attempt is kept in a file."""
    editor("path.write_text(text.replace('recompute', 'recmpute')) if times == 1 else sys.exit(1)")
    result = agentctl("edit", "policy", "p")
    assert (result.exit_code, "ended with 1" in result.stderr) == (1, True)
    assert "recmpute" in Path(result.stderr.split(" is in ")[-1].strip()).read_text()


def test_a_root_filesystem_that_is_read_only(
    agentctl: Agentctl, editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a writable directory, the error names the variable to set."""
    seen = editor("")
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    result = agentctl("edit", "policy", "p")
    assert (result.exit_code, list(seen.iterdir())) == (1, [])
    assert result.stderr == (
        "agentctl: no temporary file can be made: No such file or directory; set TMPDIR to a directory\n"
    )
