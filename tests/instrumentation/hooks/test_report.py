"""What ``python -m penstock.instrumentation.check`` says of what was found."""

from __future__ import annotations

import dataclasses
import json

import pytest
from penstock.instrumentation.hooks.registry import MissingPart
from penstock.instrumentation.hooks.report import (
    EnvironmentFinding,
    HookReport,
    HookStatus,
    Report,
    check_environment,
    format_json,
    format_text,
)
from penstock.proto.constants import COMPONENT_FRONTEND, COMPONENT_SCHEDULER, COMPONENT_WORKER

FITS = HookReport("scheduler", COMPONENT_SCHEDULER, HookStatus.FITS, host="Scheduler")
LEFT_OUT = HookReport("eplb", COMPONENT_WORKER, HookStatus.LEFT_OUT, "EplbState.step is missing")
OFF = HookReport("client_error", COMPONENT_FRONTEND, HookStatus.OFF, "disabled by PENSTOCK_HOOKS_DISABLED")
NOT_USED = HookReport("nixl", COMPONENT_WORKER, HookStatus.NOT_USED, "vLLM finds no NIXL", "Worker")
VERSIONS = {"vLLM": "0.33.0", "NIXL": ""}

TEXT = """\
vLLM 0.33.0, NIXL not installed
HOOK          COMPONENT  CLASS
scheduler     scheduler  Scheduler  fits
eplb          worker                left out: EplbState.step is missing
client_error  frontend              off: disabled by PENSTOCK_HOOKS_DISABLED
nixl          worker     Worker     not used: vLLM finds no NIXL
vLLM will load the plugin
not fit for this vLLM: eplb; engines start without, what these show is missing"""


def test_for_people() -> None:
    """One line a hook, what is missing at the end."""
    report = Report(
        VERSIONS, (FITS, LEFT_OUT, OFF, NOT_USED), (EnvironmentFinding("vLLM will load the plugin"),)
    )
    assert format_text(report) == TEXT


def test_a_missing_part_is_told() -> None:
    """The hook fits; what it does without is in its line, and is nothing wrong."""
    lost = MissingPart("queue", "time in the queue", "Scheduler.queue is missing")
    report = Report(VERSIONS, (dataclasses.replace(FITS, missing=(lost,)),), ())
    assert format_text(report).splitlines()[-1].split("  ")[-1] == "fits, without: time in the queue"
    (hook,) = json.loads(format_json(report))["hooks"]
    assert hook["without"] == [
        {"part": "queue", "lost": "time in the queue", "reason": "Scheduler.queue is missing"}
    ]
    assert not report.wrong


def test_for_programs() -> None:
    """The same with the verdict of the whole."""
    report = Report(VERSIONS, (LEFT_OUT,), (EnvironmentFinding("vLLM will load the plugin"),))
    assert json.loads(format_json(report)) == {
        "versions": VERSIONS,
        "hooks": [
            {
                "hook": "eplb",
                "component": "worker",
                "class": "",
                "verdict": "left out",
                "reason": "EplbState.step is missing",
                "without": [],
            }
        ],
        "findings": [{"text": "vLLM will load the plugin", "wrong": False}],
        "ok": False,
    }


@pytest.mark.parametrize(
    ("hooks", "findings", "wrong"),
    [
        ((FITS,), (EnvironmentFinding("x"),), False),
        ((FITS, OFF, NOT_USED), (), False),
        ((FITS, LEFT_OUT), (), True),
        ((FITS,), (EnvironmentFinding("x", wrong=True),), True),
    ],
)
def test_what_is_wrong(
    hooks: tuple[HookReport, ...], findings: tuple[EnvironmentFinding, ...], wrong: bool
) -> None:
    """A hook that does not fit or a plugin that is not loaded; not a disabled or unused hook."""
    assert Report(VERSIONS, hooks, findings).wrong is wrong


@pytest.mark.parametrize(
    ("environ", "plugins", "found"),
    [
        (
            {},
            ["penstock", "other"],
            [(False, "vLLM will load the plugin"), (False, "PENSTOCK_ENDPOINT is not set")],
        ),
        ({}, ["other"], [(True, "no entry point 'penstock'"), (False, "PENSTOCK_ENDPOINT is not set")]),
        (
            {"VLLM_PLUGINS": "other,penstock", "PENSTOCK_ENDPOINT": "127.0.0.1:4320"},
            ["penstock"],
            [(False, "vLLM will load the plugin"), (False, "entries go to 127.0.0.1:4320")],
        ),
        (
            {"VLLM_PLUGINS": "", "PENSTOCK_ENDPOINT": "nowhere"},
            ["penstock"],
            [
                (True, "VLLM_PLUGINS='' leaves it out"),
                (True, "Penstock stays off: PENSTOCK_ENDPOINT='nowhere'"),
            ],
        ),
    ],
)
def test_environment(environ: dict[str, str], plugins: list[str], found: list[tuple[bool, str]]) -> None:
    """Whether vLLM would load the plugin, and whether that would do anything."""
    findings = check_environment(environ, plugins)
    assert [each.wrong for each in findings] == [wrong for wrong, _ in found]
    assert all(words in each.text for each, (_, words) in zip(findings, found, strict=True))
