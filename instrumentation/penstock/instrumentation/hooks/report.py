"""What becomes of the hooks here, and how that is said; ``check.py`` asks, ``vllm/survey.py`` looks."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.core import settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_COMPONENTS: Final = {
    c.COMPONENT_SCHEDULER: "scheduler",
    c.COMPONENT_WORKER: "worker",
    c.COMPONENT_FRONTEND: "frontend",
}
GROUP: Final = "vllm.general_plugins"
"""The entry points among which vLLM finds the plugin."""

_PLUGIN: Final = "penstock"


class HookStatus(enum.Enum):
    """What becomes of a hook."""

    FITS = "fits"
    LEFT_OUT = "left out"
    OFF = "off"
    NOT_USED = "not used"


@dataclass(frozen=True)
class HookReport:
    """One hook, held against one class of vLLM's.

    Attributes:
        hook: its name, as in ``penstock_hook_installed{hook}``.
        component: ``COMPONENT_*``.
        verdict: what becomes of it.
        reason: why, where it is not installed.
        host: the class, for a hook that has several.

    """

    hook: str
    component: int
    verdict: HookStatus
    reason: str = ""
    host: str = ""


@dataclass(frozen=True)
class Surrounding:
    """A line about the surroundings; *wrong* if Penstock would not come to work."""

    text: str
    wrong: bool = False


@dataclass(frozen=True)
class Report:
    """All that is found.

    Attributes:
        versions: of what is installed, by name; an empty one says that it is not.
        answers: about the hooks.
        findings: about the plugin and the environment.

    """

    versions: Mapping[str, str]
    answers: Sequence[HookReport]
    findings: Sequence[Surrounding]

    @property
    def wrong(self) -> bool:
        """Whether something that would be shown is not."""
        return any(answer.verdict is HookStatus.LEFT_OUT for answer in self.answers) or any(
            finding.wrong for finding in self.findings
        )


def surroundings(environ: Mapping[str, str], plugins: Iterable[str]) -> list[Surrounding]:
    """Tell whether vLLM would load the plugin, one of *plugins* by name, and whether that would do anything."""
    found = [_plugin(environ.get("VLLM_PLUGINS"), plugins)]
    try:
        parsed = settings.parse(environ)
    except settings.SettingsError as error:
        return [*found, Surrounding(f"Penstock stays off: {error}", wrong=True)]
    if parsed is None:
        text = "PENSTOCK_ENDPOINT is not set here: an engine without it is left alone"
    else:
        text = f"entries go to {parsed.endpoint}"
    return [*found, Surrounding(text)]


def _plugin(allowed: str | None, plugins: Iterable[str]) -> Surrounding:
    if _PLUGIN not in plugins:
        text = f"vLLM will not find the plugin: no entry point {_PLUGIN!r} in {GROUP}; install the package penstock"
        return Surrounding(f"{text} into this Python, a path alone is not enough", wrong=True)
    if allowed is not None and _PLUGIN not in allowed.split(","):
        return Surrounding(
            f"vLLM will not load the plugin: VLLM_PLUGINS={allowed!r} leaves it out; add {_PLUGIN}",
            wrong=True,
        )
    return Surrounding("vLLM will load the plugin")


def as_text(report: Report) -> str:
    """Return the report for people."""
    rows = [("HOOK", "COMPONENT", "CLASS", "")]
    rows += [
        (
            each.hook,
            _COMPONENTS[each.component],
            each.host,
            f"{each.verdict.value}: {each.reason}".rstrip(": "),
        )
        for each in report.answers
    ]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    lines = [", ".join(f"{name} {number or 'not installed'}" for name, number in report.versions.items())]
    lines += ["  ".join((*map(str.ljust, row, widths), row[-1])).rstrip() for row in rows]
    lines += [finding.text for finding in report.findings]
    left_out = {each.hook for each in report.answers if each.verdict is HookStatus.LEFT_OUT}
    if left_out:
        lines.append(
            f"not fit for this vLLM: {', '.join(sorted(left_out))}; engines start without, what these show is missing"
        )
    return "\n".join(lines)


def as_json(report: Report) -> str:
    """Return the report for programs."""
    return json.dumps(
        {
            "versions": dict(report.versions),
            "hooks": [
                {
                    "hook": each.hook,
                    "component": _COMPONENTS[each.component],
                    "class": each.host,
                    "verdict": each.verdict.value,
                    "reason": each.reason,
                }
                for each in report.answers
            ],
            "findings": [{"text": each.text, "wrong": each.wrong} for each in report.findings],
            "ok": not report.wrong,
        },
        indent=2,
    )
