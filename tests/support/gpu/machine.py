"""The GPUs that this Python can use, and what runs on them; or a sentence that says why it can use none."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_GPU = "No NVIDIA GPU is here: nvidia-smi finds none."
_NO_PACKAGE = "This Python cannot import {missing}: run `make setup-gpu`, or name another one with PYTHON=."
_NO_CUDA = "PyTorch {torch} cannot use the GPU: `make setup-gpu` installs a build for CUDA."
_SECONDS = 300.0

# In a process of its own: vLLM takes seconds to import, and a parent with a CUDA context keeps GPU memory.
_PROBE = """
import json
from importlib import metadata

missing = []
for name in ("torch", "vllm", "nixl"):
    try:
        __import__(name)
    except ImportError:
        missing.append(name)
found = {"missing": missing}
if not missing:
    import torch

    found["torch"], found["cuda"] = torch.__version__, torch.version.cuda
    gpus = range(torch.cuda.device_count() if torch.version.cuda else 0)
    found["gpus"] = [torch.cuda.get_device_name(index) for index in gpus]
    found["versions"] = {name: metadata.version(name) for name in ("nixl", "penstock-vllm")}
    import vllm

    found["versions"]["vllm"] = vllm.__version__
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with GPUs that vLLM can use.

    Attributes:
        gpus: their names, by index.
        driver: NVIDIA's version of it.
        versions: of the packages, by name.

    """

    gpus: tuple[str, ...]
    driver: str
    versions: Mapping[str, str]


def look() -> Machine | str:
    """Return the machine, or a sentence that says what is missing."""
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if not driver:
        return NO_GPU
    last = _output(sys.executable, "-c", _PROBE).splitlines()[-1:]
    return understood(driver.splitlines()[0], json.loads(last[0]) if last else {"missing": ["vllm"]})


def understood(driver: str, found: Mapping[str, Any]) -> Machine | str:
    """Return the machine that a probe has found, or a sentence that says what is missing."""
    if found["missing"]:
        return _NO_PACKAGE.format(missing=", ".join(found["missing"]))
    if not found["gpus"]:
        return _NO_CUDA.format(torch=found["torch"])
    versions = {**found["versions"], "torch": found["torch"], "CUDA": found["cuda"]}
    return Machine(tuple(found["gpus"]), driver, versions)


def _output(*command: str) -> str:
    """Return what a command prints; nothing if it does not run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
