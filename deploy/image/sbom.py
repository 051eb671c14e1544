"""Prints what an image contains as CycloneDX JSON: ``sbom.py PYTHON``, run in the image that is built.

Python's packages are those that PYTHON finds, as cyclonedx-py lists them; Debian's are those that dpkg has installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

_SPECIFICATION: Final = "1.6"
_VERSION: Final = "import importlib.metadata as m; print(m.version('penstock-vllm'))"
_DPKG: Final = (
    "dpkg-query",
    "--show",
    "--showformat=${db:Status-Status} ${Package} ${Version} ${Architecture}\n",
)


def python_packages(python: str) -> dict[str, Any]:
    """Return a CycloneDX document of the packages that the interpreter finds; Penstock is what it describes."""
    program = str(Path(sys.executable).with_name("cyclonedx-py"))
    options = (
        *("--pyproject", "pyproject.toml", "--mc-type", "application"),
        *("--spec-version", _SPECIFICATION, "--output-reproducible"),
    )
    made = subprocess.run(
        [program, "environment", *options, python], capture_output=True, text=True, check=True
    )
    document: dict[str, Any] = json.loads(made.stdout)
    # pyproject.toml has no version: it comes with the build.
    asked = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True, check=True)
    document["metadata"]["component"]["version"] = asked.stdout.strip()
    return document


def debian_packages(listed: str) -> list[dict[str, str]]:
    """Return CycloneDX components of dpkg's lines ``STATUS NAME VERSION ARCHITECTURE``, those installed."""
    components = []
    for line in sorted(listed.splitlines()):
        status, name, version, architecture = line.split()
        if status == "installed":
            purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
            component = {"type": "library", "name": name, "version": version, "purl": purl}
            components.append({**component, "bom-ref": purl})
    return components


def main() -> int:
    """Print the document; 1 if it is not valid."""
    document = python_packages(sys.argv[1])
    listed = subprocess.run(_DPKG, capture_output=True, text=True, check=True).stdout
    document.setdefault("components", []).extend(debian_packages(listed))
    text = json.dumps(document, indent=1)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.stderr.write(f"sbom: the document is not valid CycloneDX {_SPECIFICATION}: {error}\n")
        return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
