"""Runs vLLM's own tests of schedulers and KV connectors with and without Penstock; says whether an outcome differs.

The tests are those of the version's source distribution on the package index; vLLM is that of the version's environment
(setup-version.sh), so its tests that need a GPU, a model or the network fail in both runs. A test whose outcome differs is
run by itself again, both ways: several of them sleep for a tenth of a second and hope. Exits with 1 where one still differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

ROOT: Final = Path(__file__).parents[1]
PLUGIN: Final = ROOT / "scripts" / "vllm_own"
CACHE: Final = ROOT / ".cache" / "vllm-own"
PACKAGES: Final = CACHE / "packages"
FILES: Final = (
    "tests/v1/core/test_scheduler.py",
    "tests/v1/core/test_async_scheduler.py",
    "tests/v1/kv_connector/unit/test_remote_decode_lifecycle.py",
    "tests/v1/kv_connector/unit/test_remote_prefill_lifecycle.py",
    "tests/v1/kv_connector/unit/test_kv_load_failure_recovery.py",
    "tests/v1/kv_connector/unit/test_invalid_blocks_correctness.py",
    "tests/v1/kv_connector/unit/test_nixl_connector.py",
    "tests/v1/kv_connector/unit/test_error_propagation.py",
    "tests/v1/kv_connector/unit/test_multi_connector.py",
    "tests/v1/kv_connector/unit/test_bidirectional_kv_transfer.py",
)
# They ask whether a server's scheduler is vLLM's class itself; with Penstock it is a subclass of that name.
_OF_THE_CLASS: Final = ("tests/v1/core/test_scheduler.py::test_diffusion_scheduler_is_selected_by_default",)
_SECONDS: Final = 1800
_DOWNLOAD_SECONDS: Final = 120
# Of the models that the tests name: as much as a ModelConfig and a scheduler's encoder budget read. No weights.
_MODELS: Final = PLUGIN / "models"

Run = dict[str, Any]
"""What the plugin writes: ``outcomes`` by test, ``hooks`` by name, ``schedulers`` by kind."""


class OwnTestsError(Exception):
    """The text says what to do."""


def sources(version: str) -> Path:
    """Return the folder with the tests of a version's source distribution; downloads it once.

    Raises:
        OwnTestsError: the index has none, or another file came than it names.

    """
    folder = CACHE / version
    if (folder / "tests").is_dir():
        return folder
    name = f"vllm-{version}.tar.gz"
    with urllib.request.urlopen(f"{_index()}/vllm/", timeout=_DOWNLOAD_SECONDS) as answer:
        page, place = answer.read().decode(), answer.url
    found = re.search(rf'href="([^"#]*{re.escape(name)})#sha256=([0-9a-f]{{64}})"', page)
    if found is None:
        raise OwnTestsError(f"pip's package index has no {name}; its tests are only in vLLM's repository")
    with urllib.request.urlopen(urljoin(place, found[1]), timeout=_DOWNLOAD_SECONDS) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != found[2]:
        raise OwnTestsError(f"{name} is another file than the package index names; try again")
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = CACHE / name
    archive.write_bytes(content)
    with tarfile.open(archive) as tar:
        wanted = [
            each for each in tar.getmembers() if re.match(r"[^/]+/(tests/|pyproject\.toml$)", each.name)
        ]
        for each in wanted:
            each.name = each.name.partition("/")[2]
        tar.extractall(folder, members=wanted, filter="data")
    archive.unlink()
    return folder


def _index() -> str:
    """Return the address of the package index that pip is set to; its help shows it.

    Raises:
        OwnTestsError: pip shows none.

    """
    command = [sys.executable, "-m", "pip", "download", "--help"]
    shown = subprocess.run(
        command, env={**os.environ, "COLUMNS": "1000"}, capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"--index-url .*\(default (\S+)\)", shown)
    if found is None:
        raise OwnTestsError("pip download --help names no package index; look at pip config list")
    return found[1].rstrip("/")


def run(version: str, python: Path, tests: list[str], *, hooks: bool, again: bool = False) -> Run:
    """Run *tests* of a version; return what the plugin says.

    Raises:
        OwnTestsError: the run has written nothing.

    """
    folder = sources(version)
    name = ("with" if hooks else "without") + (".again" if again else "")
    result, log = CACHE / f"{version}.{name}.json", CACHE / f"{version}.{name}.log"
    result.unlink(missing_ok=True)
    plugins = ("own_outcomes", "own_hooks") if hooks else ("own_outcomes",)
    command = [
        *(str(python.absolute()), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *(f"-p{plugin}" for plugin in plugins),
        *("-o", "addopts=", "-o", "asyncio_mode=auto", "-W", "ignore", "--timeout=300", "--tb=short"),
        *tests,
    ]
    with log.open("w") as output:
        try:
            code = subprocess.run(
                command,
                cwd=folder,
                env=_environment(result, hooks=hooks),
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=_SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            raise OwnTestsError(
                f"vLLM {version} {name} Penstock: not done in {_SECONDS} s; see {log}"
            ) from None
    if not result.exists():
        raise OwnTestsError(f"vLLM {version} {name} Penstock: pytest ended with {code}; see {log}")
    said: Run = json.loads(result.read_text())
    return said


def differences(without: Run, with_hooks: Run) -> list[str]:
    """Return the tests whose outcomes differ."""
    one, other = without["outcomes"], with_hooks["outcomes"]
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def compare(version: str, python: Path | None = None) -> list[str]:
    """Compare both runs of a version, print a line, and return the tests that differ.

    Raises:
        OwnTestsError: a run could not be made, or had no scheduler with the mixin.

    """
    present = [name for name in FILES if (sources(version) / name).exists()]
    _need_torchvision()
    python = python or _python(version)
    without, with_hooks = (run(version, python, present, hooks=hooks) for hooks in (False, True))
    kinds = with_hooks["schedulers"]
    if not kinds.get("instrumented"):
        raise OwnTestsError(f"vLLM {version}: no test has built a scheduler with Penstock's mixin")
    unlike = differences(without, with_hooks)
    of_the_class = [name for name in unlike if name.partition("[")[0] in _OF_THE_CLASS]
    unlike = [name for name in unlike if name not in of_the_class]
    again = f", {len(unlike)} others run again by themselves" if unlike else ""
    again = (f"; {len(of_the_class)} ask for vLLM's class itself" if of_the_class else "") + again
    if unlike:
        unlike = differences(
            *(run(version, python, unlike, hooks=hooks, again=True) for hooks in (False, True))
        )
    print(
        f"vLLM {version}: without {_numbers(without)}; with {_numbers(with_hooks)}{again}; "
        f"{len(unlike)} differ; schedulers with the mixin {kinds['instrumented']}, without {kinds.get('plain', 0)}",
        flush=True,
    )
    for name in unlike:
        print(f"  differs: {name}", flush=True)
    return unlike


def main() -> int:
    """Compare the versions that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="+", help="such as 0.31.0")
    parser.add_argument("--python", type=Path, help="of another environment with that vLLM")
    options = parser.parse_args()
    try:
        unlike = [name for version in options.versions for name in compare(version, options.python)]
        return int(bool(unlike))
    except (OwnTestsError, OSError) as error:
        print(f"vllm_own_tests: {error}", file=sys.stderr)
        return 2


def _need_torchvision() -> None:
    """Install it where it is not there; models of pictures import it."""
    if not (PACKAGES / "torchvision").is_dir():
        command = [str(ROOT / "scripts" / "torchvision.sh"), sys.executable, str(PACKAGES)]
        if subprocess.run(command, check=False).returncode:
            raise OwnTestsError("torchvision could not be installed; pip says why above")


def _python(version: str) -> Path:
    own = ROOT / ".venv-versions" / version / "bin" / "python"
    return own if own.exists() else ROOT / ".venv" / "bin" / "python"


def _environment(result: Path, *, hooks: bool) -> dict[str, str]:
    home = CACHE / "models"
    for model in _MODELS.glob("*/*"):
        cached = home / "hub" / f"models--{model.parent.name}--{model.name}"
        (cached / "refs").mkdir(parents=True, exist_ok=True)
        (cached / "refs" / "main").write_text("0")
        if not (cached / "snapshots").is_dir():
            shutil.copytree(model, cached / "snapshots" / "0")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PENSTOCK_", "VLLM_", "HF_"))
    }
    return {
        **kept,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": f"{PLUGIN}{os.pathsep}{PACKAGES}",
        "PENSTOCK_OWN_TESTS": str(result),
        # The plugin installs the hooks, or nobody does.
        **({"PENSTOCK_ENDPOINT": f"unix://{CACHE / 'nobody.sock'}"} if hooks else {"VLLM_PLUGINS": ""}),
    }


def _numbers(said: Run) -> str:
    kinds = list(said["outcomes"].values())
    return ", ".join(
        f"{kinds.count(kind)} {kind}" for kind in ("passed", "failed", "skipped") if kind in kinds
    )


if __name__ == "__main__":
    sys.exit(main())
