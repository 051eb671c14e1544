"""Contexts: named addresses in a file; flags and environment override them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner
from penstock.agent.ctl.connection.contexts import (
    DEFAULT_ADDRESS,
    ClientTls,
    Contexts,
    Endpoint,
    ShapeError,
    contexts_path,
    merge,
    parse_contexts,
    read_contexts,
    write_contexts,
)
from penstock.agent.ctl.errors import UsageError
from penstock.agent.ctl.main import cli

if TYPE_CHECKING:
    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

_NONE = Endpoint()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the contexts file."""
    found = tmp_path / "penstock" / "contexts.yaml"
    monkeypatch.setenv("PENSTOCK_CONTEXTS", str(found))
    for name in ("AGENTCTL_ADDRESS", "PENSTOCK_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return found


def _run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(cli, arguments)


def _written(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    path.chmod(0o600)


_A, _B, _C = (
    Endpoint(f"{name}:1", ClientTls(f"{name}.ca", f"{name}.crt", f"{name}.key", name)) for name in "abc"
)


@pytest.mark.parametrize(
    ("flags", "environment", "context", "named", "merged"),
    [
        (_NONE, _NONE, _NONE, False, Endpoint(DEFAULT_ADDRESS)),
        (_NONE, _NONE, _C, False, _C),
        (_NONE, _B, _C, False, _B),
        (_A, _B, _C, False, _A),
        # A context that a flag names is a flag.
        (_NONE, _B, _C, True, _C),
        (_A, _B, _C, True, _A),
        # Field by field; a name in a certificate belongs to an address.
        (Endpoint("a:1"), _NONE, _C, True, Endpoint("a:1", ClientTls("c.ca", "c.crt", "c.key"))),
        (Endpoint("c:1"), _NONE, _C, True, _C),
        (
            Endpoint("", ClientTls(server_name="x")),
            _NONE,
            _C,
            False,
            Endpoint("c:1", ClientTls("c.ca", "c.crt", "c.key", "x")),
        ),
        (
            Endpoint("", ClientTls(cert="a.crt")),
            Endpoint("", ClientTls(key="b.key")),
            _C,
            False,
            Endpoint("c:1", ClientTls("c.ca", "a.crt", "b.key", "c")),
        ),
    ],
)
def test_what_holds(
    flags: Endpoint, environment: Endpoint, context: Endpoint, named: bool, merged: Endpoint
) -> None:
    """Each field: flag or named context, else environment, else current context, else default."""
    assert merge(flags, environment, context, named=named) == merged


def test_a_file_is_what_was_written(path: Path) -> None:
    """A written file reads back; file and created directory are readable by their owner only."""
    contexts = Contexts(
        "b", {"a": Endpoint("unix:///a"), "b": Endpoint("b:1", ClientTls("/ca", "/crt", "/key"))}
    )
    write_contexts(path, contexts)
    assert read_contexts(path) == contexts
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_one(path: Path) -> None:
    """A symbolic link stays; its target is replaced."""
    path.parent.mkdir()
    target = path.with_name("dotfiles.yaml")
    path.symlink_to(target.name)
    write_contexts(path, Contexts("a", {"a": _A}))
    assert (path.is_symlink(), read_contexts(target).current) == (True, "a")


def test_paths_begin_at_the_file() -> None:
    """Relative paths begin at the file's directory, as in kubectl; a server name is no path."""
    item = {"tls-ca": "ca.crt", "tls-key": "/k", "tls-server-name": "s"}
    found = parse_contexts({"contexts": {"x": item}}, Path("/etc/p"))
    assert found.endpoints["x"].tls == ClientTls("/etc/p/ca.crt", "", "/k", "s")


@pytest.mark.parametrize(
    ("document", "words", "place"),
    [
        ([], "the file is no mapping", ()),
        (
            {"context": {}},
            "the file has no field 'context'; its fields are current-context, contexts",
            ("context",),
        ),
        ({"current-context": 1}, "current-context is no text", ("current-context",)),
        ({"contexts": []}, None, ()),
        ({"contexts": [1]}, "contexts is no mapping", ("contexts",)),
        ({"contexts": {"x": None}}, "contexts.x is no mapping", ("contexts", "x")),
        ({"contexts": {"x": {"token": "t"}}}, "contexts.x has no field 'token'", ("contexts", "x", "token")),
        (
            {"contexts": {"x": {"address": 1}}},
            "address of context 'x' is no text",
            ("contexts", "x", "address"),
        ),
    ],
)
def test_a_file_of_another_shape(document: Any, words: str | None, place: tuple[str, ...]) -> None:
    """An error names the field and its line."""
    if words is None:
        assert parse_contexts(document, Path("/")) == Contexts()
        return
    with pytest.raises(ShapeError) as caught:
        parse_contexts(document, Path("/"))
    assert words in str(caught.value)
    assert caught.value.place == place


def test_a_file_that_cannot_be_used_is_one_sentence(path: Path) -> None:
    """An error names line or mode; commands that need no address do not read the file."""
    _written(path, "contexts:\n  x:\n    adress: a:1\n")
    for arguments in (["get", "engines"], ["config", "get-contexts"], ["version"]):
        result = _run(*arguments)
        assert result.exit_code == 2
        assert f"{path}:3: contexts.x has no field 'adress'; its fields are address, tls-ca" in result.stderr
    assert _run("version", "--client").exit_code == 0
    assert "no agent answers at unix:///x" in _run("get", "engines", "--address", "/x").stderr
    assert "no agent answers at unix:///x" in _run("get", "engines", AGENTCTL_ADDRESS="/x").stderr
    _written(path, "contexts: [\n")
    assert f"{path}:2: this is not YAML" in _run("get", "engines").stderr
    _written(path, "contexts: {}\n")
    path.chmod(0o620)
    assert (
        _run("get", "engines").stderr == f"agentctl: {path} may be written by others; run chmod go-w {path}\n"
    )


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable, then XDG_CONFIG_HOME, then the home directory; without one, no file."""
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("PENSTOCK_CONTEXTS", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert contexts_path() == Path("/h/.config/penstock/contexts.yaml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert contexts_path() == Path("/x/penstock/contexts.yaml")
    monkeypatch.setenv("PENSTOCK_CONTEXTS", "/f")
    assert contexts_path() == Path("/f")
    assert read_contexts(None) == Contexts()
    with pytest.raises(UsageError):
        write_contexts(None, Contexts())


def test_contexts_are_set_used_listed_and_deleted(path: Path) -> None:
    """The subcommands have kubectl config's names and effects."""
    assert "no contexts" in _run("config", "get-contexts").stderr
    assert _run("config", "current-context").exit_code == 1
    assert _run("config", "set-context", "x").exit_code == 2
    assert _run("config", "set-context", "a b", "--address", "/x").exit_code == 2
    assert "address 'agent' is not valid" in _run("config", "set-context", "x", "--address", "agent").stderr
    assert (
        _run("config", "set-context", "x", "--address", "x:1", "--tls-ca", "ca").stdout
        == "context x created\n"
    )
    assert _run("config", "set-context", "x", "--tls-server-name", "s").stdout == "context x modified\n"
    assert _run("config", "set-context", "y", "--address", "/y").exit_code == 0
    assert _run("config", "use-context", "x").stdout == "switched to context x\n"
    assert _run("config", "current-context").stdout == "x\n"
    header, *lines = _run("config", "get-contexts").stdout.splitlines()
    assert header.split() == ["CURRENT", "NAME", "ADDRESS", "TLS-CA", "TLS-CERT"]
    ca = str(Path("ca").absolute())
    assert [line.split() for line in lines] == [["*", "x", "x:1", ca, "-"], ["y", "/y", "-", "-"]]
    assert _run("config", "get-contexts", "--no-headers").stdout.split()[:2] == ["*", "x"]
    listed = json.loads(_run("config", "get-contexts", "-o", "json").stdout)
    assert listed["currentContext"] == "x"
    assert listed["items"][0] == {"name": "x", "address": "x:1", "tlsCa": ca, "tlsServerName": "s"}
    assert _run("config", "delete-context", "x").stdout == f"context x deleted from {path}\n"
    unknown = _run("config", "use-context", "x")
    assert (unknown.exit_code, unknown.stderr) == (
        2,
        f"agentctl: there is no context 'x' in {path}; it has y\n",
    )
    assert _run("config", "current-context").exit_code == 1


def test_commands_go_to_the_context(harness: AdminHarness, path: Path) -> None:
    """The current context, or the one of a flag before or behind the command, or of the environment."""
    away = {"address": "unix:///nowhere"}
    contexts = {"here": {"address": harness.address}, "away": away}
    _written(path, {"current-context": "here", "contexts": contexts})
    assert _run("version").exit_code == 0
    assert "unix:///nowhere" in _run("--context", "away", "version").stderr
    assert "unix:///nowhere" in _run("version", "--context", "away").stderr
    assert "unix:///nowhere" in _run("version", PENSTOCK_CONTEXT="away").stderr
    # The environment's address counts less than a flag, and more than a context of the file or the environment.
    assert _run("--context", "here", "version", AGENTCTL_ADDRESS="unix:///env").exit_code == 0
    assert "unix:///env" in _run("version", AGENTCTL_ADDRESS="unix:///env").stderr
    named = _run("version", AGENTCTL_ADDRESS="unix:///env", PENSTOCK_CONTEXT="here")
    assert "unix:///env" in named.stderr
    hint = _run("--context", "here", "get", "engine", "7").stderr
    assert "'agentctl --context here get engines' lists them" in hint
    assert "there is no context 'x'" in _run("--context", "x", "version").stderr
