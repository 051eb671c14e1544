"""What vLLM makes of a staged engine part, whole or broken: by its own loader of plugins, without an engine."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.deploy.payloads import ROOT, run_stage

if TYPE_CHECKING:
    from collections.abc import Callable

_PROGRAM = ROOT / "tests" / "support" / "deploy" / "load_plugins.py"
_ENDPOINT = {"PENSTOCK_ENDPOINT": "unix:///nowhere/ingest.sock"}
_OFF = "penstock stays off, vLLM is not affected: "
# Root reads everything: without these capabilities it is a user like others.
_MORTAL = (
    ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
    if os.geteuid() == 0
    else ()
)


def load(python: Path, engine: Path, *wrapper: str, **env: str) -> dict[str, Any]:
    """Start as vLLM does, with *engine* on ``PYTHONPATH``; it must start. Return what the program found."""
    vllm = importlib.util.find_spec("vllm")
    assert vllm is not None
    assert vllm.origin is not None
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "VLLM_"))}
    done = subprocess.run(
        [*wrapper, str(python), "-B", str(_PROGRAM), str(Path(vllm.origin).parent)],
        env={**clean, "PYTHONPATH": str(engine), **(env or _ENDPOINT)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def other_python(version: str) -> Path:
    """Return the path of another version of Python, pyenv's included, or skip the test."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = shutil.which(f"python{version}")
    places = [*([Path(installed)] if installed else []), *pyenv.glob(f"{version}.*/bin/python")]
    for place in places:
        # A shim of pyenv may stand for nothing.
        if subprocess.run([place, "--version"], capture_output=True, timeout=60, check=False).returncode == 0:
            return place
    pytest.skip(f"there is no Python {version}: apt-get install python{version}, or pyenv install {version}")


def test_a_whole_one_is_loaded(image: Path, payload: Path, tmp_path: Path) -> None:
    """And gRPC and protobuf are the image's own."""
    run_stage(payload, tmp_path / "engine")
    found = load(image, tmp_path / "engine")
    assert found["hooked"], found["log"]
    assert str(tmp_path) not in found["grpc"] + found["protobuf"]
    assert not any("fallback" in entry for entry in found["path"])


def test_an_installed_one_is_hidden(staged: Path) -> None:
    """Where the image has Penstock, too, code and entry point are the staged ones, never some of each."""
    found = load(Path(sys.executable), staged)
    assert found["hooked"], found["log"]
    assert found["runtime"].startswith(str(staged))


def test_nothing_happens_without_an_endpoint(image: Path, staged: Path) -> None:
    """The files are not even looked at."""
    (staged / "penstock" / "proto" / "version.py").unlink()
    found = load(image, staged, PENSTOCK_ENDPOINT="")
    assert not found["hooked"]
    assert found["log"] == []


def test_an_image_without_grpc(image_without_grpc: Path, payload: Path, tmp_path: Path) -> None:
    """The payload's is found, behind everything of the image; protobuf stays the image's."""
    engine = tmp_path / "engine"
    run_stage(payload, engine)
    found = load(image_without_grpc, engine)
    assert found["hooked"], found["log"]
    assert found["path"][-1] == str(engine / "penstock-fallback")
    assert found["grpc"].startswith(str(engine))
    assert not found["protobuf"].startswith(str(engine))


def test_a_missing_grpc_is_said(image_without_grpc: Path, staged: Path) -> None:
    """Where neither the image nor the payload has it, no hook is installed."""
    found = load(image_without_grpc, staged)
    assert not found["hooked"]
    (line,) = found["log"]
    assert line.startswith(f"{_OFF}grpc cannot be imported here, and the payload has nothing for *.cpython-")


@pytest.mark.parametrize(("version", "starts"), [("3.10", False), ("3.12", True), ("3.13", True)])
def test_other_pythons(staged: Path, tmp_path: Path, version: str, starts: bool) -> None:
    """One that is too old gets a sentence; a newer one with its own gRPC loads the same files."""
    python = other_python(version)
    packages = tmp_path / "packages"
    for name in ("grpc", "google/protobuf"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    env = {**_ENDPOINT, "PYTHONPATH": f"{staged}:{packages}"}
    found = load(python, staged, **env)
    assert found["hooked"] is starts
    assert found["log"] == ([] if starts else [f"{_OFF}this is Python {version}, it needs 3.11 or newer"])


def cut(path: str, size: int = 700) -> Callable[[Path], object]:
    """Return what keeps the first *size* bytes of a file."""
    return lambda engine: (engine / path).write_bytes((engine / path).read_bytes()[:size])


def syntax_error(path: str) -> Callable[[Path], object]:
    """Return what breaks a file's syntax."""
    return lambda engine: (engine / path).write_text("def register(:\n")


def gone(path: str) -> Callable[[Path], object]:
    """Return what removes a file or a directory."""

    def remove(engine: Path) -> None:
        for found in engine.glob(path):
            shutil.rmtree(found) if found.is_dir() else found.unlink()

    return remove


def of_metadata(name: str, size: int) -> Callable[[Path], object]:
    """Return what keeps the first *size* bytes of a file of the distribution's metadata."""

    def shorten(engine: Path) -> None:
        (file,) = engine.glob(f"penstock_vllm-*.dist-info/{name}")
        file.write_bytes(file.read_bytes()[:size])

    return shorten


def unreadable(path: str) -> Callable[[Path], object]:
    """Return what takes everybody's rights away."""

    def lock(engine: Path) -> None:
        for found in engine.glob(path):
            found.chmod(0)

    return lock


def twice(engine: Path) -> None:
    """Leave the metadata of another version beside it."""
    shutil.copytree(next(engine.glob("penstock_vllm-*.dist-info")), engine / "penstock_vllm-0.0.1.dist-info")


def _another(damage: Callable[[Path], object], line: str | None) -> Any:
    """Return a variant of a damage that the ordinary run has in another file or of another size."""
    return pytest.param(damage, line, marks=pytest.mark.long)


_RUNTIME = "penstock/instrumentation/runtime.py"
_GUARD = "penstock/instrumentation/core/guard.py"


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (gone("*"), None),
        _another(gone("penstock_vllm-*.dist-info"), None),
        (of_metadata("entry_points.txt", 0), None),
        _another(of_metadata("entry_points.txt", 44), "No module named"),
        (gone("penstock"), "cannot be read: No such file or directory"),
        _another(gone("penstock_payload.py"), "No module named 'penstock_payload'"),
        _another(gone(_GUARD), "cannot be read: No such file or directory"),
        (cut(_RUNTIME), "is not as it was built: 700 bytes instead of"),
        _another(cut("penstock_payload.py"), "Failed to load plugin penstock"),
        _another(cut("penstock_payload.py", 0), "Failed to load plugin penstock"),
        _another(cut(_GUARD, 0), "is not as it was built: 0 bytes instead of"),
        _another(syntax_error(_RUNTIME), "runtime.py is not as it was built"),
        (syntax_error("penstock_payload.py"), "Failed to load plugin penstock: SyntaxError"),
        _another(of_metadata("RECORD", 2_000), "RECORD is"),
        (of_metadata("RECORD", 0), "RECORD is incomplete"),
        _another(gone("penstock_vllm-*.dist-info/RECORD"), "RECORD cannot be read"),
        (unreadable(_RUNTIME), "runtime.py cannot be read: Permission denied"),
        _another(unreadable("penstock"), "cannot be read: Permission denied"),
        _another(unreadable("penstock_payload.py"), "Failed to load plugin penstock"),
        _another(unreadable("penstock_vllm-*.dist-info"), None),
        (twice, "holds 2 versions of the engine part, not one"),
    ],
    ids=lambda value: "" if callable(value) else str(value)[:40],
)
def test_a_broken_one_is_left_out(
    image: Path, staged: Path, damage: Callable[[Path], object], line: str | None
) -> None:
    """VLLM starts, without a hook, and one line says why; where there is nothing to load, none."""
    damage(staged)
    try:
        found = load(image, staged, *_MORTAL)
    finally:
        for path in (staged, *staged.glob("*"), *staged.glob("penstock/instrumentation/runtime.py")):
            path.chmod(0o755)
    assert not found["hooked"]
    assert len(found["log"]) == (line is not None), found["log"]
    assert line is None or line in found["log"][0]


def test_a_directory_that_cannot_be_entered(image: Path, staged: Path) -> None:
    """All of it hidden from the engine's user: as if it were not there."""
    staged.chmod(0)
    try:
        found = load(image, staged, *_MORTAL)
    finally:
        staged.chmod(0o755)
    assert not found["hooked"]
    assert found["log"] == []


def test_a_fallback_that_is_damaged(image_without_grpc: Path, payload: Path, tmp_path: Path) -> None:
    """It is verified before it is used, and only then."""
    engine = tmp_path / "engine"
    run_stage(payload, engine)
    cut("penstock-fallback/grpc/__init__.py")(engine)
    found = load(image_without_grpc, engine)
    assert not found["hooked"]
    assert "penstock-fallback/grpc/__init__.py is not as it was built" in found["log"][0]


def test_what_the_payload_says_of_itself(image: Path, staged: Path) -> None:
    """``python -m penstock_payload``, for a person in the engine's container."""
    command = [str(image), "-B", "-m", "penstock_payload"]
    env = {**os.environ, "PYTHONPATH": str(staged)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"the engine part in {staged} is whole; gRPC and protobuf: the interpreter's own\n"
    cut(_RUNTIME)(staged)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("penstock stays off here: ")
