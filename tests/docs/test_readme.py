"""What README and the reference say of the commands is what the commands say of themselves."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

from penstock.agent.daemon.config import OPTIONS
from penstock.agent.relay.config import OPTIONS as RELAY_OPTIONS

_ROOT = Path(__file__).parents[2]
_README = (_ROOT / "README.md").read_text()
_CONFIGURATION = (_ROOT / "docs/reference/configuration.md").read_text()
_BENCHMARKS = (_ROOT / "docs/benchmarks.md").read_text()
_FOLDED = " ".join(_README.split())
_PROFILES = " ".join((_ROOT / "docs/profiles.md").read_text().replace("**", "").split())
_ROW = re.compile(r"^\| (`--[^|]*)\|([^|]*)\|", re.MULTILINE)
_LIMIT = 0.99
_QUOTED = re.compile(r"`([^`]*)`")


def _table(title: str) -> dict[str, str]:
    """Return the flags of a chapter's table and their defaults, empty where there is none."""
    table: dict[str, str] = {}
    chapter = _CONFIGURATION.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    for flags, defaults in _ROW.findall(chapter):
        names, values = _QUOTED.findall(flags), _QUOTED.findall(defaults)
        table |= dict(zip(names, values or [""] * len(names), strict=True))
    return table


def test_every_flag_is_in_its_table() -> None:
    """With its default; and none that the agent or the relay does not have."""
    assert _table("The agent") == {f"--{option.name}": option.default for option in OPTIONS}
    assert _table("The relay") == {f"--{option.name}": option.default for option in RELAY_OPTIONS}


def test_the_agents_part_is_what_the_readme_installs() -> None:
    """The engine's image gets the base, the sidecar the extra of that name."""
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "agent" in extras
    assert "`pip install penstock-vllm`" in _FOLDED
    assert "`pip install 'penstock-vllm[agent]'`" in _FOLDED


def test_the_first_screen_names_its_readers() -> None:
    """What it needs, was tested on, costs, and when not to use it; then what to try, three steps, one incident."""
    screen = _README.partition("\n## Try it")[0]
    assert len(screen.splitlines()) <= 45
    said = [
        "**Needs**",
        "**Tested on**",
        "**GPU: not yet**",
        "**Costs an engine**",
        "**Throughput**",
        "**Costs a pod**",
        "**Do not use it**",
    ]
    assert [words for words in said if words not in screen] == []
    assert re.findall(r"^## (.*)", _README, re.MULTILINE) == [
        "Try it",
        "Add it to a vLLM server",
        "An incident",
        "Further",
    ]
    assert not re.findall(r"^### ", _README, re.MULTILINE)
    assert len(_README.split()) <= 1200


def test_what_it_costs_is_what_was_measured() -> None:
    """The numbers of the first screen are those of the benchmarks, rounded."""
    sample, event = (_measured(f"`emit()` of {what}")[0] / 1000 for what in ("a sample", "an event"))
    ratio, low, high = _measured("real vLLM throughput: Penstock, agent ÷ without")
    (memory, *_) = _measured("agent memory at 2,000 events/s from 64 sources")
    for words in (
        f"{sample:.1f} µs a transfer, {event:.1f} µs an event",
        f"By the clock it is not decided: {ratio:.2f} ({low:.2f} to {high:.2f})",
        f"the agent at 2,000 events/s: {memory:.0f} MiB",
    ):
        assert words in _README


def test_what_does_not_hold_is_said() -> None:
    """Each verdict on the throughput by instructions stands on the side of the table's row where it belongs."""
    holds, _, fails = next(
        line for line in _README.splitlines() if line.startswith("| **Throughput**")
    ).partition("**Does not hold**")
    for row, words in (
        ("Decode only", "decode only"),
        ("Prefill-heavy: requests come and go", "prefill-heavy"),
        ("Decode side over NIXL", "decode over NIXL"),
        ("Prefill side over NIXL", "prefill over NIXL"),
        ("Encoder → language", "encoder to language"),
    ):
        what = f"real vLLM throughput: Penstock ÷ without, by instructions, a step of 2 ms: {row}"
        ratio, *_ = _measured(what)
        assert f"{words} {ratio:.3f}" in (holds if ratio >= _LIMIT else fails)


def test_what_benchmarks_do_not_store_is_what_the_profiles_say() -> None:
    """A step, a request and an idle engine: the profiles have the numbers, their source and their date."""
    (low, high) = _profiled(r"more in the mixin than without Penstock \(([\d.]+) to ([\d.]+)\)")
    remote = _profiled(r"Over NIXL it is (\d+) to (\d+)\.")
    request = _profiled(r"The life of a request takes (\d+) to (\d+) µs")
    load = _profiled(r"one with a remote load some (\d+) to (\d+)\b")
    (idle,) = _profiled(r"An idle engine pays ([\d.]+) % of a core")
    for words in (
        f"{math.floor(low)} to {math.ceil(high)} µs a scheduler step in which nothing happens",
        f"({remote[0]:.0f} to {remote[1]:.0f} µs with NIXL)",
        f"{request[0]:.0f} to {request[1]:.0f} µs a request",
        f"{load[0]:.0f} to {load[1]:.0f} µs one with a remote load",
        f"{idle:.1f} % of a core when idle",
    ):
        assert words in _README


def _profiled(pattern: str) -> tuple[float, ...]:
    """Return the numbers of a sentence of the profiles."""
    found = re.search(pattern, _PROFILES)
    assert found, pattern
    return tuple(float(text) for text in found.groups())


def _measured(what: str) -> tuple[float, float, float]:
    """Return a budget's number and the interval of its median."""
    row = next(line for line in _BENCHMARKS.splitlines() if line.startswith(f"| {what} |"))
    found = re.search(r"\| ([\d.,]+) [^|]*\(([\d.,]+) to ([\d.,]+)\) \|", row)
    assert found, row
    number, low, high = (float(text.replace(",", "")) for text in found.groups())
    return number, low, high
