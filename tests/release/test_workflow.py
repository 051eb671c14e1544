"""The workflows, which nothing here can run: what they name is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from penstock.proto.version import __version__

from scripts.package import PackageError, check_tag

_ROOT = Path(__file__).parents[2]
_WORKFLOWS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in (_ROOT / ".github" / "workflows").glob("*.yml")
}
_WORKFLOW = _WORKFLOWS["release"]
_JOBS: dict[str, Any] = _WORKFLOW["jobs"]


def _runs(job: dict[str, Any]) -> list[str]:
    """Return a job's commands, with the targets of its matrix in their place."""
    targets = job.get("strategy", {}).get("matrix", {}).get("target", [])
    runs = [step["run"] for step in job["steps"] if "run" in step]
    return [
        run.replace("${{ matrix.target }}", target)
        for run in runs
        for target in (targets if "${{ matrix.target }}" in run else [""])
    ]


@pytest.mark.parametrize("name", _WORKFLOWS)
def test_what_a_job_runs_exists(name: str) -> None:
    """Targets of make, the jobs that it waits for, and Prometheus, which make installs as root only."""
    makefile = (_ROOT / "Makefile").read_text()
    targets = dict(re.findall(r"^([a-z-]+):([^#\n]*)", makefile, re.MULTILINE))
    for job in _WORKFLOWS[name]["jobs"].values():
        runs = _runs(job)
        used = [target for run in runs for target in re.findall(r"\bmake ([a-z-]+)", run)]
        assert used == [target for target in used if target in targets]
        if any("prometheus" in targets[target].split() for target in used):
            (install,) = (run for run in runs if "apt-get install" in run)
            assert "prometheus" in install.split()
            assert runs.index(install) < min(
                number for number, run in enumerate(runs) if re.search(r"\bmake (?!setup)", run)
            )
        needed = job.get("needs", [])
        assert set([needed] if isinstance(needed, str) else needed) <= set(_WORKFLOWS[name]["jobs"])


def test_what_is_merged_has_passed_all_stages() -> None:
    """The pull request's workflow runs the same targets as .ci/run."""
    stages = set(
        re.findall(r"^(?:stage|begin) .* make ([a-z-]+)$", (_ROOT / ".ci/run").read_text(), re.MULTILINE)
    )
    stages |= set(re.findall(r"^ +stage .* make ([a-z-]+)$", (_ROOT / ".ci/run").read_text(), re.MULTILINE))
    used = {
        target
        for job in _WORKFLOWS["check"]["jobs"].values()
        for run in _runs(job)
        for target in re.findall(r"\bmake ([a-z-]+)", run)
    }
    assert {"check", "test", "package", "test-image"} <= stages
    # What sets another up runs in it.
    assert stages - used <= {"setup-compat", "setup-python", "image"}


def test_the_images_are_the_dockerfiles() -> None:
    """Each image is a stage of it, gets its arguments, and has no label that the Dockerfile gives it already."""
    dockerfile = (_ROOT / "Dockerfile").read_text()
    stages = dict(
        re.findall(r"^FROM \S+ AS ([a-z-]+)\n(.*?)(?=^FROM|\Z)", dockerfile, re.MULTILINE | re.DOTALL)
    )
    assert list(stages)[-1] == "agent", "what `docker build .` makes"
    images = _JOBS["images"]["strategy"]["matrix"]["name"]
    assert images == ["agent", "payload"]
    (build,) = (step["with"] for step in _JOBS["images"]["steps"] if step.get("id") == "build")
    given = {line.partition("=")[0] for line in build["build-args"].splitlines()}
    for image in images:
        asked = set(re.findall(r"^ARG ([A-Z]+)", stages[image], re.MULTILINE))
        assert asked == given
        labels = set(re.findall(r"org\.opencontainers\.image\.[a-z.]+", stages[image]))
        assert labels.isdisjoint(line.partition("=")[0] for line in build["labels"].splitlines())


def test_a_release_attaches_what_its_jobs_made() -> None:
    """The directories of the last step are the artifacts of the jobs before it, and there are no others."""
    made = set()
    for job in _JOBS.values():
        for step in job["steps"]:
            kind = step.get("uses", "").partition("@")[0]
            if kind == "actions/upload-artifact":
                made.add(step["with"]["name"])
            elif kind == "anchore/sbom-action":
                assert step["with"]["upload-release-assets"] is False
                made |= {
                    step["with"]["artifact-name"].replace("${{ matrix.name }}", name)
                    for name in job["strategy"]["matrix"]["name"]
                }
            elif kind == "docker/build-push-action":
                assert step["env"]["DOCKER_BUILD_RECORD_UPLOAD"] is False
    attached = re.findall(r"found/([\w.-]+)/\*", " ".join(_runs(_JOBS["notes"])))
    assert set(attached) == made


def test_every_image_that_is_named_is_of_this_version() -> None:
    """Manifests and guides; a release changes them (CONTRIBUTING.md, "How to release")."""
    named = re.compile(r"penstock/(?:agent|payload)(?:,.*\bnewTag: |:)([\w.+-]+)")
    found: dict[str, set[str]] = {}
    for place in ("deploy", "docs/guides"):
        for path in (_ROOT / place).rglob("*"):
            if path.suffix in {".yaml", ".yml", ".md"}:
                for tag in named.findall(path.read_text()):
                    found.setdefault(path.relative_to(_ROOT).as_posix(), set()).add(tag)
    assert "deploy/kustomize/daemonset/component/source/kustomization.yaml" in found
    wrong = {path: tags for path, tags in found.items() if tags - {__version__, "VERSION", "NEW", "OLD"}}
    assert not wrong


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
