"""The report of ``check.py``: which hooks fit the installed vLLM. ``vllm/survey.py`` fills it."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.instrumentation.hooks.registry import MissingPart

_COMPONENTS: Final = {
    c.COMPONENT_SCHEDULER: "scheduler",
    c.COMPONENT_WORKER: "worker",
    c.COMPONENT_FRONTEND: "frontend",
}
PLUGIN_GROUP: Final = "vllm.general_plugins"
"""The group of entry points in which vLLM finds the plugin."""

_PLUGIN: Final = "penstock"


class HookStatus(enum.Enum):
    """Whether a hook would be installed."""

    FITS = "fits"
    LEFT_OUT = "left out"
    OFF = "off"
    NOT_USED = "not used"


@dataclass(frozen=True)
class HookReport:
    """One hook, compared with one class of vLLM.

    Attributes:
        hook: its name, as in ``penstock_hook_installed{hook}``.
        component: ``COMPONENT_*``.
        status: whether it would be installed.
        reason: why, where it is not installed.
        host: the class, for a hook that has several.
        missing: what it does without, where it is installed.

    """

    hook: str
    component: int
    status: HookStatus
    reason: str = ""
    host: str = ""
    missing: tuple[MissingPart, ...] = ()


@dataclass(frozen=True)
class EnvironmentFinding:
    """A sentence about the environment; *wrong* if it keeps Penstock from working."""

    text: str
    wrong: bool = False


@dataclass(frozen=True)
class Report:
    """The result of a check.

    Attributes:
        versions: by name of the package; empty for one that is not installed.
        hooks: one for each hook and class.
        findings: about the plugin and the environment.

    """

    versions: Mapping[str, str]
    hooks: Sequence[HookReport]
    findings: Sequence[EnvironmentFinding]

    @property
    def wrong(self) -> bool:
        """Whether a hook or the environment keeps Penstock from showing something."""
        return any(each.status is HookStatus.LEFT_OUT for each in self.hooks) or any(
            finding.wrong for finding in self.findings
        )


def check_environment(environ: Mapping[str, str], plugins: Iterable[str]) -> list[EnvironmentFinding]:
    """Return whether vLLM would load the plugin and whether Penstock would be on; *plugins* are the entry points' names."""
    found = [_plugin(environ.get("VLLM_PLUGINS"), plugins)]
    try:
        parsed = settings.parse(environ)
    except settings.SettingsError as error:
        return [*found, EnvironmentFinding(f"Penstock stays off: {error}", wrong=True)]
    if parsed is None:
        text = "PENSTOCK_ENDPOINT is not set here: an engine without it is left alone"
    else:
        text = f"entries go to {parsed.endpoint}"
    return [*found, EnvironmentFinding(text)]


def _plugin(allowed: str | None, plugins: Iterable[str]) -> EnvironmentFinding:
    if _PLUGIN not in plugins:
        text = f"vLLM will not find the plugin: no entry point {_PLUGIN!r} in {PLUGIN_GROUP}; install the package penstock"
        return EnvironmentFinding(f"{text} into this Python, a path alone is not enough", wrong=True)
    if allowed is not None and _PLUGIN not in allowed.split(","):
        return EnvironmentFinding(
            f"vLLM will not load the plugin: VLLM_PLUGINS={allowed!r} leaves it out; add {_PLUGIN}",
            wrong=True,
        )
    return EnvironmentFinding("vLLM will load the plugin")


def format_text(report: Report) -> str:
    """Return the report for people."""
    rows = [("HOOK", "COMPONENT", "CLASS", "")]
    rows += [
        (
            each.hook,
            _COMPONENTS[each.component],
            each.host,
            _said(each),
        )
        for each in report.hooks
    ]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    lines = [", ".join(f"{name} {number or 'not installed'}" for name, number in report.versions.items())]
    lines += ["  ".join((*map(str.ljust, row, widths), row[-1])).rstrip() for row in rows]
    lines += [finding.text for finding in report.findings]
    left_out = {each.hook for each in report.hooks if each.status is HookStatus.LEFT_OUT}
    if left_out:
        lines.append(
            f"not fit for this vLLM: {', '.join(sorted(left_out))}; engines start without, what these show is missing"
        )
    return "\n".join(lines)


def _said(hook: HookReport) -> str:
    if hook.missing:
        return f"{hook.status.value}, without: {'; '.join(part.lost for part in hook.missing)}"
    return f"{hook.status.value}: {hook.reason}".rstrip(": ")


def format_json(report: Report) -> str:
    """Return the report for programs."""
    return json.dumps(
        {
            "versions": dict(report.versions),
            "hooks": [
                {
                    "hook": each.hook,
                    "component": _COMPONENTS[each.component],
                    "class": each.host,
                    "verdict": each.status.value,
                    "reason": each.reason,
                    "without": [
                        {"part": part.name, "lost": part.lost, "reason": part.reason} for part in each.missing
                    ],
                }
                for each in report.hooks
            ],
            "findings": [{"text": each.text, "wrong": each.wrong} for each in report.findings],
            "ok": not report.wrong,
        },
        indent=2,
    )
