"""Shell completion of commands, and of names that the agent has."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from tests.support.agent.batches import PEER, transfer_failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]


def _complete(address: str, line: str) -> list[str]:
    """Ask as bash does, with the cursor at the end of *line*."""
    # Bash has the empty word under the cursor, which the line that click splits has not.
    words = ["agentctl", "--address", address, *line.split(" ")]
    environment = {
        "_AGENTCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(cli, env=environment, prog_name="agentctl")
    assert result.stderr == ""
    return [entry.partition(",")[2] for entry in result.stdout.split()]


def test_commands_options_and_words(harness: AdminHarness) -> None:
    """Commands, options and choices complete without an agent; aliases complete, unknown commands do not."""
    nowhere = "/nowhere/admin.sock"
    assert sorted(_complete(nowhere, "d")) == [
        "debug",
        "delete",
        "describe",
        "diagnose",
        "diff",
        "doctor",
        "drain",
        "drill",
    ]
    assert _complete(nowhere, "e") == ["explain", "edit", "eject"]
    assert _complete(nowhere, "describe ") == ["engine", "peer", "policy", "request"]
    assert "--no-headers" in _complete(nowhere, "get eng --")
    assert _complete(nowhere, "get pe") == ["peers"]
    assert "--outcome" in _complete(nowhere, "get request --o")
    assert _complete(nowhere, "get events --kind transfer_") == ["transfer_delayed", "transfer_failure"]
    assert _complete(nowhere, "get engines -o ") == ["table", "wide", "json", "yaml", "name", "jsonpath="]
    assert _complete(nowhere, "doctor -o j") == ["json", "jsonpath="]
    assert _complete(nowhere, "bogus x") == []


def test_names_that_would_do_something_are_left_out(
    harness: AdminHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names with characters that a shell would interpret are not offered."""
    monkeypatch.setattr("penstock.agent.ctl.options._DEADLINE", 60.0)
    names = (
        "$(reboot)",
        "`id`",
        "a;b",
        "a b",
        "a\nplain,b",
        "\x1b[2J",
        "\u202ea",
        "--all",
        "[::1]:5600",
        "é-1",
    )
    core = harness.source("0")
    harness.append(core, *(transfer_failure("r", peer=name) for name in names))
    assert _complete(harness.address, "get requests --peer ") == ["[::1]:5600", "é-1"]


def test_names_are_those_that_the_agent_knows(
    harness: AdminHarness, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines, peers and policies complete; engines of a named server with the server."""
    monkeypatch.setattr("penstock.agent.ctl.options._DEADLINE", 60.0)
    harness.append(harness.source("0"), transfer_failure("r"))
    harness.source("1", server="prefill")
    agentctl("set-policy", "gold", "--all", "--kv-load-failure", "recompute")
    for line, names in (
        ("describe engine ", ["0", "prefill/1"]),
        ("get engines ", ["0", "prefill/1"]),
        ("describe peer ", [PEER]),
        ("edit policy ", ["gold"]),
        ("get policy --effective pre", ["prefill/1"]),
        ("pause ", ["0", "prefill/1"]),
        ("quarantine add 10.", [PEER]),
        ("get requests --peer ", [PEER]),
        ("rollback g", ["gold"]),
        ("delete policy ", ["gold"]),
        ("diff policy ", ["gold"]),
    ):
        assert _complete(harness.address, line) == names, line


def test_names_of_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts complete from the contexts file; an unreadable file yields none and no error."""
    contexts = tmp_path / "contexts.yaml"
    monkeypatch.setenv("PENSTOCK_CONTEXTS", str(contexts))
    for text, names in (("contexts: {one: {}, two: {}, '$(x)': {}}", ["one", "two"]), ("[", [])):
        contexts.write_text(text)
        contexts.chmod(0o600)
        assert _complete("/nowhere", "get engines --context ") == names
        assert _complete("/nowhere", "config use-context ") == names


def test_an_agent_that_is_not_there_is_silence() -> None:
    """Without an agent, completion prints nothing, on stderr neither."""
    assert _complete("/nowhere/admin.sock", "describe engine ") == []
    assert _complete("not-an-address", "describe engine ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_can_read(shell: str) -> None:
    """The shell parses the script, where it is installed."""
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_AGENTCTL_COMPLETE" in result.stdout
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=result.stdout, text=True, check=True)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with this source's ``agentctl`` on its path, and an empty home."""
    program = tmp_path / "agentctl"
    program.write_text(f"#!{sys.executable}\nfrom penstock.agent.ctl.main import main\nmain()\n")
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {**os.environ, "HOME": str(tmp_path), "PATH": path, "TERM": "dumb", "ZDOTDIR": str(tmp_path)}


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(environment: dict[str, str]) -> None:
    """Fish loads the script and offers what agentctl answers."""
    said = subprocess.run(
        ["fish", "--no-config", "-c", "agentctl completion fish | source; complete -C 'agentctl get pe'"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.stderr == ""
    assert [line.split("\t")[0] for line in said.stdout.splitlines()] == ["peers"]


class Terminal:
    """An interactive shell on a pseudo-terminal."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._pid, self._file = pty.fork()
        if not self._pid:
            os.execvpe(command[0], command, environment)
        self._said = ""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._file, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until the shell has printed *text*; drop the output before it."""
        end = time.monotonic() + 60
        while text not in self._said:
            assert time.monotonic() < end, self._said
            if select.select([self._file], [], [], 1.0)[0]:
                self._said += os.read(self._file, 4096).decode(errors="replace")
        self._said = self._said.partition(text)[2]

    def close(self) -> None:
        """End the shell."""
        os.close(self._file)
        os.waitpid(self._pid, 0)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(environment: dict[str, str]) -> None:
    """Zsh loads the script and offers what agentctl answers when Tab is pressed."""
    terminal = Terminal(["zsh", "-f", "-i"], environment)
    try:
        terminal.type(
            "PS1='% '; autoload -Uz compinit && compinit -u -D && source <(agentctl completion zsh) && echo rea''dy\n"
        )
        terminal.wait_for("ready")
        terminal.type("agentctl get pe")
        terminal.wait_for("get pe")
        terminal.type("\t")
        terminal.wait_for("ers")
    finally:
        terminal.type("\x03exit\n")
        terminal.close()
