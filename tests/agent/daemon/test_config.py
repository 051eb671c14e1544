"""Flags over environment over file, and one sentence for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.daemon.config import OPTIONS, resolve
from penstock.agent.errors import ConfigError
from penstock.agent.parsing.options import parse_seconds
from penstock.agent.server.addresses import TcpAddress, UnixAddress, parse_address, parse_tcp
from penstock.agent.server.callers import Role

TLS = {
    "admin-tls-cert": "/c.pem",
    "admin-tls-key": "/k.pem",
    "admin-tls-client-ca": "/ca.pem",
    "admin-allow": "ops=write",
}


def test_defaults_are_those_of_the_design():
    """Nothing given: the documented defaults."""
    config = resolve({}, {})
    assert config.listen == UnixAddress(Path("/run/penstock/ingest.sock"))
    assert config.admin_listen == (UnixAddress(Path("/run/penstock/admin.sock")),)
    assert config.admin_tls is None
    assert config.http == TcpAddress("127.0.0.1", 9464)
    assert config.state_dir == Path("/var/lib/penstock")
    assert config.policy_file is None
    assert (config.log_format, config.log_level, config.engines_expected) == ("json", "info", 0)
    assert (config.state_limit, config.on_fatal) == (1 << 30, "exit")
    assert config.memory_limit == 512 << 20
    assert (config.audit_entries, config.audit_bytes) == (50_000, 16 << 20)


def test_a_flag_wins_over_a_variable_and_that_over_the_file(tmp_path):
    """Three places give the port; each in turn is the strongest."""
    file = tmp_path / "agent.toml"
    file.write_text('http = "127.0.0.1:1"\nengines-expected = 3\n')
    environment = {"PENSTOCK_AGENT_HTTP": "127.0.0.1:2", "PENSTOCK_AGENT_CONFIG": str(file), "POD_UID": "u1"}
    config = resolve({"http": "127.0.0.1:3"}, environment)
    assert (config.http.port, config.engines_expected, config.pod_uid) == (3, 3, "u1")
    assert resolve({"http": None}, environment).http.port == 2
    assert resolve({"config": str(file)}, {}).http.port == 1


def test_the_admin_service_over_tcp_has_certificates_and_a_list(tmp_path):
    """By flags, or as lists in the file; names may hold what URIs hold."""
    file = tmp_path / "agent.toml"
    lines = [f'{name} = "{value}"' for name, value in TLS.items() if name != "admin-allow"]
    lines += [
        'admin-listen = ["unix:///a.sock", "127.0.0.1:1"]',
        'admin-allow = ["ops=write", "spiffe://x/y?a=b=read"]',
    ]
    file.write_text("\n".join(lines))
    config = resolve({"config": str(file)}, {})
    assert config.admin_listen == (UnixAddress(Path("/a.sock")), TcpAddress("127.0.0.1", 1))
    assert config.admin_tls is not None
    assert config.admin_tls.client_ca == Path("/ca.pem")
    assert config.admin_tls.allow.roles == {"ops": Role.WRITE, "spiffe://x/y?a=b": Role.READ}


@pytest.mark.parametrize(
    ("flags", "environment", "file", "sentence"),
    [
        (
            {"retire-after": "0s"}, {}, "",
            "--retire-after '0s' is wrong: expected more than 0; for a very long time write 365d",
        ),
        ({"http": "nowhere"}, {}, "", "--http 'nowhere' is wrong: expected host:port, with a port from 0 to 65535"),
        ({"http": "h:65536"}, {}, "", "--http 'h:65536' is wrong: expected host:port, with a port from 0 to 65535"),
        ({}, {"PENSTOCK_AGENT_LISTEN": "unix:run/x"}, "", "PENSTOCK_AGENT_LISTEN 'unix:run/x' is wrong: expected unix:///path with an absolute path"),
        ({"listen": "unix:///" + "x" * 120}, {}, "", "a unix socket's path has at most 107 bytes"),
        ({"admin-listen": "0.0.0.0:1"}, {}, "", "--admin-listen 0.0.0.0:1 is TCP, which is offered only to clients with a certificate; give --admin-tls-cert, --admin-tls-key, --admin-tls-client-ca, --admin-allow, or a unix socket"),
        ({"admin-listen": "unix:///a,h:1", **TLS, "admin-allow": ""}, {}, "", "--admin-listen h:1 is TCP, which is offered only to clients with a certificate; give --admin-allow, or a unix socket"),
        (TLS, {}, "", "--admin-tls-cert is given, but no --admin-listen is host:port; add one, or leave it out"),
        ({"admin-listen": "h:1,h:2"}, {}, "", "--admin-listen 'h:1,h:2' is wrong: expected unix:///path, host:port, or one of each with a comma between them"),
        ({"admin-allow": "a=admin"}, {}, "", "--admin-allow 'a=admin' is wrong: expected NAME=read or NAME=write, with commas between them"),
        ({"admin-allow": "a"}, {}, "", "--admin-allow 'a' is wrong: expected NAME=read or NAME=write"),
        ({"admin-allow": "=read"}, {}, "", "--admin-allow '=read' is wrong: expected NAME=read or NAME=write"),
        ({"admin-allow": "a=read,a=write"}, {}, "", "--admin-allow 'a=read,a=write' is wrong: expected each name once, and 'a' is there twice"),
        ({}, {}, 'http = ["h:1"]', "http in {file} is ['h:1']; write it as a string"),
        ({}, {}, "admin-allow = [1]", "admin-allow in {file} is [1]; write it as a string"),
        ({"drain-deadline": "10"}, {}, "", "--drain-deadline '10' is wrong: expected a duration like 10s, 5m or 1h30m"),
        ({"log-level": "loud"}, {}, "", "--log-level 'loud' is wrong: expected one of debug, info, warning, error"),
        ({"engines-expected": "-1"}, {}, "", "--engines-expected '-1' is wrong: expected a whole number, 0 or more"),
        ({"policy-file": "a\0b"}, {}, "", "is wrong: expected a path"),
        ({"state-dir": ""}, {}, "", "--state-dir '' is wrong: expected the path of a directory"),
        ({"state-limit": "31MiB"}, {}, "", "--state-limit '31MiB' is wrong: expected 32MiB or more, a number with MiB, GiB or TiB, like 1GiB"),
        ({"audit-entries": "99"}, {}, "", "--audit-entries '99' is wrong: expected a whole number, 100 or more"),
        ({"memory-limit": "64MiB"}, {}, "", "--memory-limit '64MiB' is wrong: expected 128MiB or more, a number with MiB, GiB or TiB"),
        ({"state-limit": "1G"}, {}, "", "--state-limit '1G' is wrong: expected 32MiB or more"),
        ({"on-fatal": "panic"}, {}, "", "--on-fatal 'panic' is wrong: expected one of exit, idle"),
        ({}, {}, 'htp = "x"', "'htp' in {file} is not an option; the options are listen, admin-listen, admin-tls-cert, "),
        ({}, {}, "http = true", "http in {file} is True; write it as a string, as you would after --http"),
        ({}, {}, 'http = "x"', "http in {file} 'x' is wrong: expected host:port"),
        ({}, {}, "http = ", "--config '{file}' is not TOML: "),
        ({"config": "/nowhere/x.toml"}, {}, "", "--config '/nowhere/x.toml' cannot be read: No such file or directory"),
        ({"listen": "unix:///a", "admin-listen": "unix:///a"}, {}, "", "--listen and --admin-listen are both unix:///a; give each a socket of its own"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_sentence(tmp_path, flags, environment, file, sentence):
    """Each names the place, the value and what was expected."""
    path = tmp_path / "agent.toml"
    if file:
        path.write_text(file)
        flags = {"config": str(path)}
    with pytest.raises(ConfigError) as caught:
        resolve(flags, environment)
    assert sentence.format(file=path) in str(caught.value)
    assert "\n" not in str(caught.value).split("is not TOML")[0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10.0), ("1.5m", 90.0), ("1h30m", 5400.0), ("1d", 86400.0), ("0s", 0.0)],
)
def test_durations(text, seconds):
    """The grammar of policies and of agentctl."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:///run/a.sock", UnixAddress(Path("/run/a.sock"))),
        ("unix:/run/a.sock", UnixAddress(Path("/run/a.sock"))),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("[::1]:4317", TcpAddress("::1", 4317)),
    ],
)
def test_addresses(text, address):
    """Unix sockets in both spellings, names and IPv6."""
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "a", ":1", "a:", "::1:2", "a:b", "a:-1", "a:1²", "unix:", "unix:///", "unix:////a"]
)
def test_what_is_no_address(text):
    """None of these is taken for something else."""
    with pytest.raises(ValueError, match="expected"):
        parse_address(text)


@given(st.sampled_from(["host", "::1", "10.0.0.1"]), st.integers(0, 65535))
def test_an_address_reads_back_as_it_was_written(host, port):
    """Text and address are each other's inverse."""
    address = TcpAddress(host, port)
    assert parse_tcp(str(address)) == address


@given(st.sampled_from(OPTIONS), st.text(max_size=20))
def test_any_text_is_taken_or_refused_with_a_sentence(option, text):
    """No text makes a parser fail in another way."""
    try:
        option.parse(text)
    except ValueError as error:
        with pytest.raises(ConfigError, match=f"--{option.name} "):
            resolve({option.name: text}, {})
        message = str(error)
        assert "expected" in message or "at most" in message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a = " + "[" * 100_000, "is not TOML"),
        ("a = " + "{b = " * 5_000, "is not TOML"),
        ("# " + "x" * (1 << 20), "has more than 1048576 bytes; give another file"),
        ("a = 0x" + "f" * 100_000, "is not an option"),
    ],
    ids=["deep arrays", "deep tables", "a megabyte", "a long number"],
)
def test_a_file_that_is_made_to_hurt(tmp_path, text, sentence):
    """Nesting without end, and more than anybody writes: a sentence."""
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        resolve({"config": str(path)}, {})
