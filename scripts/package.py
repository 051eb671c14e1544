"""Builds sdist and wheel into dist/, and tries the wheel in environments of its own.

``package.py [--tag vX.Y.Z]``: the sdist makes the same wheel; ``penstock-vllm[agent]`` in an empty environment starts an agent
and answers ``agentctl``; the engine part alone brings gRPC and protobuf only; in an environment with vLLM the check of the
hooks passes. What the package needs comes from this environment, packed into wheels, or with ``--index`` from pip's
configured sources. ``--tag`` compares the version and the changelog with a tag.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.deploy.payloads import bare_python, installed_wheels, requirements  # noqa: E402

DIST: Final = ROOT / "dist"
REQUIREMENTS: Final = ROOT / "deploy" / "image" / "requirements.txt"
_START_SECONDS: Final = 120.0


class PackageError(Exception):
    """The text says what is wrong with the packages."""


def run(*command: str | Path, code: int = 0, stderr: bool = False) -> str:
    """Run a command and return its standard output, or its standard error.

    Raises:
        PackageError: its exit code is another.

    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode != code:
        line = " ".join(str(word) for word in command)
        raise PackageError(f"{line} ended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")
    return done.stderr if stderr else done.stdout


def check_page(address: str) -> None:
    """Check that the agent serves its page with the files that it names.

    Raises:
        PackageError: one is missing.

    """
    try:
        with urllib.request.urlopen(address, timeout=_START_SECONDS) as answer:
            document = answer.read().decode()
        for name in re.findall(r'(?:src|href)="(/?static/[^"]+)"', document) or [""]:
            with urllib.request.urlopen(
                f"{address}{name.removeprefix('/')}", timeout=_START_SECONDS
            ) as answer:
                if not name or not answer.read():
                    raise PackageError(f"the page at {address} names {name!r}, which is empty")
    except OSError as error:
        raise PackageError(f"the page at {address} is not served whole: {error}") from error


def environment(directory: Path, *requirements: str | Path, options: tuple[str, ...] = ()) -> Path:
    """Make an environment with these packages and return the directory of its programs."""
    if not directory.exists():
        venv.EnvBuilder(with_pip=False, symlinks=True).create(directory)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
    run(*pip, "--python", directory / "bin" / "python", "install", *options, *requirements)
    return directory / "bin"


def contents(wheel: Path) -> dict[str, int]:
    """Return the check sums of a wheel's files."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


def build(work: Path) -> Path:
    """Build both, and the wheel a second time from the sdist; return the wheel.

    Raises:
        PackageError: the two wheels differ, or hold what they should not.

    """
    shutil.rmtree(DIST, ignore_errors=True)
    # The same backend as in the images.
    backend = re.findall(r"^hatchling==.+", REQUIREMENTS.read_text(), re.MULTILINE)
    programs = environment(work / "build", *backend)
    subprocess.run(
        [programs / "python", "-m", "hatchling", "build", "-d", str(DIST)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    shutil.unpack_archive(sdist, work / "sdist", filter="data")
    (source,) = (work / "sdist").iterdir()
    subprocess.run(
        [programs / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", str(work / "again")],
        cwd=source,
        check=True,
        capture_output=True,
    )
    files = contents(wheel)
    if files != contents(next((work / "again").glob("*.whl"))):
        raise PackageError("the wheel of the sdist differs from the wheel of this checkout")
    strange = {name for name in files if not name.startswith(("penstock/", "penstock_vllm-"))}
    if strange:
        raise PackageError(f"the wheel holds {', '.join(sorted(strange))}")
    return wheel


def version_of(wheel: Path) -> str:
    """Return the version in a wheel's name."""
    return wheel.name.split("-")[1]


def check_tag(tag: str, version: str, changelog: str) -> None:
    """Compare a tag with what is built.

    Raises:
        PackageError: it names another version, or the changelog does not have it.

    """
    if tag != f"v{version}":
        raise PackageError(f"the tag {tag} is not v{version}, the version in proto/penstock/proto/version.py")
    if not re.search(rf"^## \[{re.escape(version)}\]", changelog, re.MULTILINE):
        raise PackageError(f"CHANGELOG.md has no section [{version}]")


def sources(work: Path) -> tuple[str, ...]:
    """Return pip's options for wheels of this environment, and no others."""
    wheels = installed_wheels(work / "wheels", *requirements("penstock-vllm", "agent"))
    return ("--no-index", "--find-links", str(wheels))


def try_agent(work: Path, wheel: Path, options: tuple[str, ...]) -> None:
    """Install ``penstock-vllm[agent]``, start the agent, ask it by agentctl, and end it by SIGTERM.

    Raises:
        PackageError: one of these fails.

    """
    programs = environment(work / "agent", f"{wheel}[agent]", options=options)
    version = version_of(wheel)
    for program in ("penstock-agent", "agentctl"):
        said = run(programs / program, "--version").strip()
        if said != f"{program} {version} (penstock-vllm)":
            raise PackageError(f"{program} --version says {said!r}, the wheel is {version}")
    admin = f"unix://{work}/admin.sock"
    command: list[str | Path] = [
        *(
            programs / "penstock-agent",
            "--http=127.0.0.1:0",
            "--page=127.0.0.1:0",
            f"--state-dir={work / 'state'}",
        ),
        *(f"--listen=unix://{work}/ingest.sock", f"--admin-listen={admin}"),
    ]
    with (work / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not (work / "state" / "addresses.json").exists():
            if agent.poll() is not None or time.monotonic() > deadline:
                raise PackageError(f"the agent does not start:\n{(work / 'agent.log').read_text()}")
            time.sleep(0.1)
        run(programs / "agentctl", f"--address={admin}", "get", "engines")
        check_page(json.loads((work / "state" / "addresses.json").read_text())["page"])
        agent.send_signal(signal.SIGTERM)
        if agent.wait(_START_SECONDS) != 0:
            raise PackageError(f"the agent ends with {agent.returncode}:\n{(work / 'agent.log').read_text()}")
    finally:
        agent.kill()
        agent.wait()


def try_engine_part(work: Path, wheel: Path, options: tuple[str, ...]) -> None:
    """Install the wheel without extras: what it brings, and what it says where vLLM or the agent's packages are missing.

    Raises:
        PackageError: it brings or says something else.

    """
    programs = environment(work / "engine", wheel, options=options)
    listed = json.loads(
        run(
            *(sys.executable, "-m", "pip", "--disable-pip-version-check"),
            *("--python", programs / "python", "list", "--format=json"),
        )
    )
    names = {each["name"].lower().replace("-", "_") for each in listed}
    if names != {"penstock_vllm", "grpcio", "protobuf", "typing_extensions"}:
        raise PackageError(f"the engine part brings {', '.join(sorted(names))}")
    for command, words in (
        ((programs / "python", "-m", "penstock.instrumentation.check"), "vLLM cannot be imported here"),
        ((programs / "penstock-agent",), "pip install 'penstock-vllm[agent]'"),
        ((programs / "agentctl", "get", "engines"), "pip install 'penstock-vllm[agent]'"),
    ):
        said = run(*command, code=2, stderr=True)
        if words not in said:
            raise PackageError(f"{command[0].name} says {said!r}")


def try_with_vllm(work: Path, wheel: Path) -> None:
    """Install the wheel beside the vLLM of this environment, and let the check look at its hooks.

    Raises:
        PackageError: a hook does not fit, or vLLM would not load the plugin.

    """
    python = bare_python(work / "vllm", "penstock-vllm")
    environment(work / "vllm", wheel, options=("--no-deps",))
    found = json.loads(run(python, "-m", "penstock.instrumentation.check", "--json"))
    if found["versions"]["penstock"] != version_of(wheel):
        raise PackageError(f"the check is that of {found['versions']['penstock']}, not of the wheel")
    run(python, "-c", f"import penstock.proto; assert penstock.proto.__file__.startswith({str(work)!r})")


def main() -> int:
    """Build and try; return the exit code."""
    parser = argparse.ArgumentParser(prog="make package", description=__doc__)
    parser.add_argument("--tag", help="the tag of the release: vX.Y.Z")
    parser.add_argument("--index", action="store_true", help="install from pip's configured sources")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pp-") as directory:
        work = Path(directory)
        try:
            wheel = build(work)
            if options.tag:
                check_tag(options.tag, version_of(wheel), (ROOT / "CHANGELOG.md").read_text())
            print(f"package: {wheel.relative_to(ROOT)} and its sdist, which makes the same wheel")
            options_of_pip = () if options.index else sources(work)
            try_agent(work, wheel, options_of_pip)
            print("package: penstock-vllm[agent] in an empty environment: starts, answers, ends")
            try_engine_part(work, wheel, options_of_pip)
            print("package: the engine part alone: gRPC and protobuf, nothing else")
            try_with_vllm(work, wheel)
            print("package: the wheel beside vLLM: its hooks fit")
        except PackageError as error:
            print(f"package: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
