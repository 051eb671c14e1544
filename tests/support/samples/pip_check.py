"""Stands in for ``pip`` where a document installs the checkout: says whether that would work, and installs nothing.

``python -m tests.support.samples.pip_check install '.[agent]'``: the directory has to be a project, its extras have to
exist, and what they require has to be what this environment has.
"""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement


def main() -> int:
    """Check each argument of ``install``."""
    command, *wanted = sys.argv[1:]
    missing = [] if command == "install" and wanted else [f"pip {command}"]
    for each in wanted:
        directory, _, extras = each.rstrip("]").partition("[")
        project = tomllib.loads((Path(directory) / "pyproject.toml").read_text())["project"]
        lines = list(project["dependencies"])
        for extra in filter(None, extras.split(",")):
            lines += project["optional-dependencies"].get(extra) or [f"no-extra-{extra}"]
        missing += [line for line in lines if not _installed(Requirement(line))]
    if missing:
        sys.stderr.write(f"cannot be installed: {', '.join(missing)}\n")
    return 1 if missing else 0


def _installed(requirement: Requirement) -> bool:
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(main())
