"""The release workflow, which nothing here can run: what it names is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.package import PackageError, check_tag

_ROOT = Path(__file__).parents[2]
_WORKFLOW: dict[str, Any] = yaml.safe_load((_ROOT / ".github" / "workflows" / "release.yml").read_text())
_JOBS: dict[str, Any] = _WORKFLOW["jobs"]


def test_its_targets_and_files_exist() -> None:
    """Targets of make, Dockerfiles, and jobs that it waits for."""
    targets = set(re.findall(r"^([a-z-]+):", (_ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [step["run"] for job in _JOBS.values() for step in job["steps"] if "run" in step]
    used = {name for run in runs for name in re.findall(r"\bmake ([a-z-]+)", run)}
    assert {"check", "package"} <= used <= targets
    for image in _JOBS["images"]["strategy"]["matrix"]["include"]:
        assert (_ROOT / image["file"]).is_file()
    for job in _JOBS.values():
        needed = job.get("needs", [])
        assert set([needed] if isinstance(needed, str) else needed) <= set(_JOBS)


def test_it_has_no_more_rights_than_a_job_needs() -> None:
    """Reading is the default; no job but these may sign, push or write."""
    assert _WORKFLOW["permissions"] == {"contents": "read"}
    rights = {
        name: {right for right, level in job["permissions"].items() if level == "write"}
        for name, job in _JOBS.items()
        if "permissions" in job
    }
    assert rights == {"pypi": {"id-token"}, "images": {"packages", "id-token"}, "notes": {"contents"}}
    assert "secrets." not in (_ROOT / ".github" / "workflows" / "release.yml").read_text()


@pytest.mark.parametrize(
    ("tag", "changelog", "sentence"),
    [
        ("v0.1.0", "# Changelog\n\n## [0.1.0] - 2026-12-01\n", ""),
        ("v0.2.0", "## [0.1.0] - 2026-12-01\n", "the tag v0.2.0 is not v0.1.0"),
        ("v0.1.0", "## [Unreleased]\n", r"has no section \[0.1.0\]"),
        ("v0.1.0", "text of ## [0.1.0]\n", r"has no section \[0.1.0\]"),
    ],
)
def test_a_tag_is_compared(tag: str, changelog: str, sentence: str) -> None:
    """With the version and the changelog."""
    if not sentence:
        check_tag(tag, "0.1.0", changelog)
        return
    with pytest.raises(PackageError, match=sentence):
        check_tag(tag, "0.1.0", changelog)
