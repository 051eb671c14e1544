"""What the guides tell people to type and to look for exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from penstock.agent.ctl.commands.policies.fields import FIELDS
from penstock.agent.ctl.main import cli
from penstock.agent.metrics.catalogue import METRICS
from penstock.agent.relay.run import (
    AGENTS,
    EJECTIONS,
    EJECTIONS_HELD_BACK,
    LEASE_HELD,
    ROLLOUT_ABORTS,
    STATUS_PATCHES,
)
from penstock.agent.traces.spans import semconv
from penstock.proto.names import words
from penstock.proto.v1.common_pb2 import DecidedBy, ErrorType, FailureMode

_ROOT = Path(__file__).parents[2]
GUIDES = sorted((_ROOT / "docs" / "guides").glob("*.md"))
_KV = (_ROOT / "docs" / "guides" / "kv-load-failures.md").read_text()
_EC = (_ROOT / "docs" / "guides" / "ec-load-failures.md").read_text()
# In tables and sentences in backquotes; in examples after the prompt, perhaps over two lines, before a comment.
_QUOTED = re.compile(r"`(agentctl [^`]+)`")
_TYPED = re.compile(r"^\$ (agentctl (?:[^\n\\]|\\\n)*)", re.MULTILINE)
_PLACEHOLDERS = {"ENGINE": "0", "OTHER": "1", "PEER": "10.0.0.7:5600"}


def _commands(text: str) -> list[list[str]]:
    found = [*_QUOTED.findall(text), *_TYPED.findall(text)]
    return [
        [_PLACEHOLDERS.get(word, word) for word in shlex.split(line.replace("\\\n", " "), comments=True)]
        for line in found
    ]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_every_command_exists(guide: Path) -> None:
    """With arguments and options that it takes."""
    commands = _commands(guide.read_text())
    assert commands
    for program, *arguments in commands:
        command: click.Command | None = cli
        context = click.Context(cli, info_name=program)
        while isinstance(command, click.Group):
            name = arguments.pop(0)
            command = command.get_command(context, name)
            assert command is not None, f"{guide.name}: agentctl has no {name}"
            context = click.Context(command, parent=context, info_name=name)
        assert command is not None
        assert command.make_context(name, arguments, parent=context.parent).command is command


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_every_metric_attribute_and_alert_exists(guide: Path) -> None:
    """A name that was changed in the code is changed here."""
    text = guide.read_text()
    alerts = yaml.safe_load((_ROOT / "dashboards" / "prometheus" / "alerts.yml").read_text())
    known = {rule["alert"] for group in alerts["groups"] for rule in group["rules"]}
    assert set(re.findall(r"`(Penstock\w+)`", text)) <= known
    metrics = {name for metric in METRICS for name in (metric.name, *metric.samples)}
    modules = {path.stem for path in (_ROOT / "deploy" / "payload").glob("penstock_*.py")}
    assert set(re.findall(r"\bpenstock_\w+", text)) <= metrics | modules | {
        AGENTS,
        "penstock_digest",  # among the transfer parameters of a request
        LEASE_HELD,
        ROLLOUT_ABORTS,
        EJECTIONS,
        EJECTIONS_HELD_BACK,
        STATUS_PATCHES,
    }
    spans = {value for name, value in vars(semconv).items() if name.isupper()}
    assert set(re.findall(r"`(penstock\.[\w.]+)`", text)) <= spans


def test_the_guide_to_load_failures_is_complete() -> None:
    """Each mode of a KV transfer, each error type and each decider is explained."""
    rows = set(re.findall(r"^\| `(\w+)` \|", _KV, re.MULTILINE))
    # A probe is a question to an encoder cache.
    assert set(words(FailureMode)) - rows == {"probe"}
    quoted = set(re.findall(r"`([\w-]+)`", _KV))
    assert set(words(ErrorType)) | set(words(DecidedBy)) <= quoted


def test_each_field_of_a_policy_is_explained() -> None:
    """Its flag and its path; those about encoder outputs in a guide of their own, telemetry's in that of policies."""
    for field in FIELDS:
        if field.path.startswith("telemetry"):
            continue
        guide = _EC if field.path.startswith("ecLoadFailure") else _KV
        quoted = {word.removeprefix("--") for word in re.findall(r"`([\w-]+)`", guide)}
        assert field.flag.removeprefix("--") in quoted, field.flag
        assert field.path in guide or f".{field.path.partition('.')[2]}`" in guide, field.path
