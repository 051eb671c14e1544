"""No secret of the configuration is in a bundle: not a byte of it."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from typing import TYPE_CHECKING

from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.agent.daemon.config import resolve, shown_config
from penstock.agent.parsing import mask_message, mask_urls
from penstock.proto.v1.admin_pb2 import AgentStatus

from tests.support.agent.agent import running_agent
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

_SECRETS = ("hunter2", "s3cr3t", "t0psecret", "k3yk3y", "m0delpw")


def test_a_configuration_is_shown_without_secrets(tmp_path: Path) -> None:
    """Files are named; passwords, headers and the users of URLs are masked."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://bob:hunter2@localhost:4317",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=s3cr3t",
    }
    flags = {
        "policy-source": "nats://carol:t0psecret@localhost:4222/policies",
        "kube-token-file": str(tmp_path / "token"),
        "state-dir": str(tmp_path),
    }
    shown = shown_config(resolve(flags, environment)).decode()
    assert not [secret for secret in _SECRETS if secret in shown]
    document = json.loads(shown)
    assert document["policy_sources"] == ["nats://localhost:4222/policies"]
    assert document["export"]["headers"] == "***"
    assert document["export"]["endpoint"] == "http://***@localhost:4317"
    assert document["kube_token_file"] == str(tmp_path / "token")
    assert document["state_limit"] == 1 << 30


def test_urls_are_masked() -> None:
    """Users, passwords and queries go; what is no URL stays."""
    assert mask_urls("see http://a:b@h/x?token=c nats://u@h:1/b") == "see http://***@h/x?*** nats://***@h:1/b"
    assert mask_urls("me@host 10.0.0.7:5600 unix:///run/x") == "me@host 10.0.0.7:5600 unix:///run/x"
    status = AgentStatus(otlp_error="http://a:b@h fails", agents=[{"address": "x://u:p@h"}])
    mask_message(status)
    assert (status.otlp_error, status.agents[0].address) == ("http://***@h fails", "x://***@h")


def test_no_secret_is_in_the_file(tmp_path: Path) -> None:
    """Secrets in the configuration, and the one that an engine shows, are in no part of the file, packed or not."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://bob:hunter2@127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=s3cr3t",
    }
    file = tmp_path / "b.penstock"
    with running_agent(env=environment) as agent:
        with FakeEngine(agent.listen, secret=b"k3yk3y", model="http://u:m0delpw@h/m") as engine:
            engine.publish(transfer_failure("req-1"))
            made = CliRunner(env={"AGENTCTL_ADDRESS": agent.admin}).invoke(cli, ["bundle", "-f", str(file)])
        assert made.exit_code == 0, made.output
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
        archive.extract("journal.db", tmp_path)
    assert set(parts) == {
        "manifest.json", "state.json", "metrics.txt", "configuration.json", "policy.db", "journal.db"
    }  # fmt: skip
    for name, content in {**parts, file.name: file.read_bytes()}.items():
        assert not [secret for secret in _SECRETS if secret.encode() in content], name
    assert b"penstock_" in parts["metrics.txt"]
    database = sqlite3.connect(tmp_path / "journal.db")
    assert database.execute("SELECT count(*) FROM batches").fetchone()[0] >= 1
    database.close()
