"""Compares the hooks with each minor version of vLLM that can be installed; writes the table of docs/compatibility.md.

Each version other than that of .venv has an environment below .venv-versions: its build for CPU, where there is one
(setup-version.sh), else the Python code of its wheel (setup-compat.sh). No engine is started.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = Path(__file__).parents[1]
DOCUMENT: Final = ROOT / "docs" / "compatibility.md"
ENVIRONMENTS: Final = ".venv-versions"
RANGES: Final = (ROOT / "README.md", ROOT / "docs" / "guides" / "install.md")
# The last eight minor versions are supported, and what the newest general release of these pins, where that is older.
_MINORS: Final = 8
_PINNED: Final = {"Dynamo 1.6": (0, 31), "llm-d 0.9.0": (0, 26)}

BEGIN: Final = "<!-- From here on by: make check-versions -->"
END: Final = "<!-- Until here by: make check-versions -->"
_WIDTH: Final = 100
_NUMBER: Final = re.compile(r"\d+\.\d+\.\d+(?:\.post\d+)?")
# A line for each version with a build for CPU: the version, and its NIXL.
_CPU_BUILDS: Final = ROOT / "scripts" / "nixl-versions.txt"
# What a requirement says of the parameters that are there instead.
_INSTEAD: Final = re.compile(r" \(it has .*?\)(?=;|$)")

Survey = dict[str, Any]
"""What ``python -m penstock.instrumentation.check --json`` prints."""


class CheckError(Exception):
    """The text says what to do."""


def newest_of_each_minor(listed: str, pinned: Iterable[tuple[int, int]] = _PINNED.values()) -> list[str]:
    """Return the newest release of each supported minor version, of those that a text lists; *pinned* are supported too."""
    newest: dict[tuple[int, ...], tuple[list[int], str]] = {}
    for number in _NUMBER.findall(listed):
        parts = [int(part) for part in re.findall(r"\d+", number)]
        minor = tuple(parts[:2])
        newest[minor] = max(newest.get(minor, ([], "")), (parts, number))
    major, last = max(newest, default=(0, 0))
    oldest = min([(major, last - _MINORS + 1), *pinned])
    return [newest[minor][1] for minor in sorted(newest) if minor >= oldest]


def with_range(document: str, first: str, last: str) -> str:
    """Return a document with the versions that are supported."""
    return re.sub(r"vLLM 0\.\d+ to 0\.\d+", f"vLLM {first} to {last}", document)


def minor_of(version: str) -> str:
    """Return ``0.32`` of ``0.32.0+cpu``."""
    return ".".join(version.split(".")[:2])


def verdicts(survey: Survey) -> dict[str, tuple[str, list[str]]]:
    """Return by hook its cell, and why it is left out: ``yes``, ``less``, ``no``, ``partly`` (of several classes), ``not used``."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in survey["hooks"]:
        found.setdefault(row["hook"], []).append(row)
    return {hook: _verdict(rows) for hook, rows in found.items()}


def _verdict(rows: list[dict[str, str]]) -> tuple[str, list[str]]:
    said = {row["verdict"] for row in rows}
    reasons = [_INSTEAD.sub("", row["reason"]) for row in rows if row["verdict"] == "left out"]
    if not reasons:
        fits = "less" if any(row["without"] for row in rows) else "yes"
        return (fits if "fits" in said else rows[0]["verdict"]), []
    # Where none fits, the first class stands for the others.
    return ("partly", reasons) if "fits" in said else ("no", reasons[:1])


def without(survey: Survey) -> dict[str, list[str]]:
    """Return by hook what an installed one does without, in a user's words; none that lacks nothing."""
    found: dict[str, list[str]] = {}
    for row in survey["hooks"]:
        for part in row["without"]:
            lost = found.setdefault(row["hook"], [])
            if part["lost"] not in lost:
                lost.append(part["lost"])
    return found


def rewritten(document: str, surveys: list[Survey], not_installed: list[str]) -> str:
    """Return the document with the table and the reasons of *surveys*, one for each version, the oldest first.

    The column that says what is missing without a hook stays as it is.

    Raises:
        CheckError: the document lacks the marks, or the row of a hook.

    """
    before, begin, rest = document.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise CheckError(f"the document lacks {BEGIN!r} or {END!r}")
    told = {cells[0].strip("`"): cells[1] for cells in _rows(old)}
    columns = [(minor_of(survey["versions"]["vLLM"]), verdicts(survey)) for survey in surveys]
    hooks = {hook for _, column in columns for hook in column}
    if hooks - set(told):
        missing = ", ".join(sorted(hooks - set(told)))
        raise CheckError(f"add a row for {missing} to the table: what is missing without it?")
    lines = [
        _row("hook", "what is missing without it", *(version for version, _ in columns)),
        "|---" * (2 + len(columns)) + "|",
    ]
    lines += [
        _row(f"`{hook}`", what, *(column.get(hook, ("", []))[0] for _, column in columns))
        for hook, what in told.items()
        if hook in hooks
    ]
    numbers = ", ".join(survey["versions"]["vLLM"] for survey in surveys)
    lines += ["", *_wrapped(f"Releases compared: {numbers}."), ""]
    for sentence in _missing(surveys):
        lines += _wrapped(f"- {sentence}", "  ")
    for sentence in not_installed:
        lines += _wrapped(f"- {sentence}", "  ")
    text = "\n".join([begin, "", *lines, *([""] if lines[-1] else []), end])
    return f"{before}{text}{after}"


def _missing(surveys: list[Survey]) -> list[str]:
    """Return a sentence for each reason why a hook is left out, and each detail that it lacks, with the versions."""
    left_out: dict[str, list[str]] = {}
    lost: dict[str, list[str]] = {}
    for survey in surveys:
        version = minor_of(survey["versions"]["vLLM"])
        for hook, (_, reasons) in verdicts(survey).items():
            if reasons:
                left_out.setdefault(f"`{hook}` left out ({'; '.join(reasons)})", []).append(version)
        for hook, parts in without(survey).items():
            lost.setdefault(f"`{hook}` works without: {'; '.join(parts)}", []).append(version)
    return [
        f"{', '.join(versions)}: {what}."
        for found in (left_out, lost)
        for what, versions in sorted(found.items())
    ]


def _rows(table: str) -> list[list[str]]:
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    return rows[2:]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def available(python: str) -> list[str]:
    """Ask the package index for the versions.

    Raises:
        CheckError: it does not answer, or has none.

    """
    command = [python, "-m", "pip", "--disable-pip-version-check", "index", "versions", "vllm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = newest_of_each_minor(done.stdout)
    if done.returncode != 0 or not found:
        raise CheckError(f"the package index lists no vLLM: {done.stderr.strip()}")
    return found


def survey_of(python: Path) -> Survey:
    """Run the check with that Python.

    Raises:
        CheckError: it gives no answer.

    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PENSTOCK_", "VLLM_PLUGINS"))
    }
    done = subprocess.run(
        [str(python), "-m", "penstock.instrumentation.check", "--json"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer: Survey = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise CheckError(f"the check fails: {last}") from None
    return answer


def installed(version: str) -> Path:
    """Return the Python of an environment with that vLLM, after building it where it is not up to date.

    Raises:
        CheckError: it cannot be built.

    """
    venv = f"{ENVIRONMENTS}/{version}"
    environ = {**os.environ, "VLLM": version, "PENSTOCK_VENV_VERSION": venv, "PENSTOCK_VENV_COMPAT": venv}
    has_build = any(line.split()[0] == minor_of(version) for line in _CPU_BUILDS.read_text().splitlines())
    script = "scripts/setup-version.sh" if has_build else "scripts/setup-compat.sh"
    if subprocess.run([script], cwd=ROOT, env=environ, check=False).returncode != 0:
        raise CheckError("it cannot be installed here")
    return ROOT / venv / "bin" / "python"


def main() -> int:
    """Check, and write; return the exit code."""
    parser = argparse.ArgumentParser(prog="make check-versions", description=__doc__)
    parser.add_argument(
        "versions",
        nargs="*",
        help="of vLLM, to be printed only; without any the newest of each minor version",
    )
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the table is another")
    options = parser.parse_args()
    try:
        surveys, failed = compare(options.versions or available(sys.executable))
        if options.versions:
            return 1 if failed else 0
        return write(surveys, failed, check=options.check)
    except CheckError as error:
        print(f"check-versions: {error}", file=sys.stderr)
        return 1


def compare(versions: list[str]) -> tuple[list[Survey], list[str]]:
    """Print what each version leaves out; return their surveys, and a sentence for each version without one.

    Raises:
        CheckError: the installed vLLM gives no answer.

    """
    surveys, failed = [], []
    base = survey_of(Path(sys.executable))
    own = base["versions"]["vLLM"].partition("+")[0]
    for version in versions:
        try:
            survey = base if version == own else survey_of(installed(version))
        except CheckError as error:
            failed.append(f"{version} could not be compared: {error}.")
            print(f"check-versions: {failed[-1]}", file=sys.stderr)
            continue
        surveys.append(survey)
        reasons = [f"{hook} ({'; '.join(why)})" for hook, (_, why) in verdicts(survey).items() if why]
        lost = [f"{hook}: {'; '.join(what)}" for hook, what in without(survey).items()]
        print(
            f"check-versions: {version} leaves out {', '.join(reasons) or 'nothing'}"
            + (f", and works without: {', '.join(lost)}" if lost else "")
        )
    return surveys, failed


def write(surveys: list[Survey], failed: list[str], *, check: bool) -> int:
    """Write the table, or only compare it; return the exit code."""
    others = 0
    compared = [minor_of(each["versions"]["vLLM"]) for each in surveys]
    for document in (DOCUMENT, *RANGES):
        name, before = document.relative_to(ROOT), document.read_text()
        if document == DOCUMENT:
            after = rewritten(before, surveys, failed)
        else:
            after = with_range(before, compared[0], compared[-1])
        if after == before:
            print(f"check-versions: {name} says the same")
        elif check:
            print(f"check-versions: {name} says otherwise; run: make check-versions", file=sys.stderr)
            others += 1
        else:
            document.write_text(after)
            print(f"check-versions: written to {name}")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
