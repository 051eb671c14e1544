"""The images as containers, with what a pod gives them: a read-only root, no capabilities, volumes."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.agent.agent import wait_until

if TYPE_CHECKING:
    from pathlib import Path

USER = 65532
_SECONDS = 240
_PODMAN = ("podman", "--runtime=runc", "--cgroup-manager=cgroupfs")
_POD = (
    *("--network=host", "--read-only", "--read-only-tmpfs=false"),
    *("--cap-drop=all", "--security-opt=no-new-privileges"),
    # Podman would raise the machine's own limits, which takes CAP_SYS_RESOURCE.
    *("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"),
)


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run podman to its end."""
    command = [*_PODMAN, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
    return done


class Sidecar:
    """A container of the agent's image; *directory* stands for the pod's volumes and outlives the container.

    Attributes:
        endpoint: where engines connect, as ``PENSTOCK_ENDPOINT`` takes it.

    """

    def __init__(self, image: str, directory: Path) -> None:
        self._image, self._directory = image, directory
        self._name = f"penstock-{uuid.uuid4().hex[:12]}"
        self._volumes = {"/run/penstock": directory / "run", "/var/lib/penstock": directory / "state"}
        self.endpoint = f"unix://{directory}/run/ingest.sock"

    def start(self) -> Sidecar:
        """Start it and wait until it is ready."""
        for volume in self._volumes.values():
            volume.mkdir(exist_ok=True)
            os.chown(volume, USER, USER)
        (self._directory / "state" / "addresses.json").unlink(missing_ok=True)
        mounts = [f"--volume={volume}:{place}" for place, volume in self._volumes.items()]
        podman(
            *("run", "--detach", "--name", self._name, "--memory=256m", *_POD, *mounts),
            *(self._image, "--http=127.0.0.1:0", "--page=127.0.0.1:0"),
        )
        wait_until(self._ready, "the container is ready")
        return self

    def _ready(self) -> bool:
        assert podman("inspect", "--format", "{{.State.Running}}", self._name).stdout == "true\n", self.log()
        return self.get("/readyz")[0] == 200

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it."""
        return podman("exec", self._name, *command, check=False)

    def stop(self) -> int:
        """Stop it as a kubelet does, and return its exit code."""
        podman("stop", "--time", "60", self._name)
        return int(podman("inspect", "--format", "{{.State.ExitCode}}", self._name).stdout)

    def remove(self) -> None:
        """Remove the container and its anonymous volumes, running or not."""
        podman("rm", "--force", "--volumes", self._name, check=False)

    def log(self) -> str:
        """Return what it wrote."""
        done = podman("logs", self._name, check=False)
        return done.stdout + done.stderr

    def get(self, path: str) -> tuple[int, str]:
        """GET a path of its HTTP port: status and body; status 0 without an answer."""
        try:
            address = json.loads((self._directory / "state" / "addresses.json").read_text())["http"]
            with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def run_once(
    image: str, *command: str, memory: str, volume: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run an init container to its end, with the rights of a pod's; *volume* is mounted at the command's last word."""
    mounts = [] if volume is None else [f"--volume={volume}:{command[-1]}"]
    program, *arguments = command
    options = (*_POD, *mounts, f"--memory={memory}", f"--entrypoint={program}")
    return podman("run", "--rm", *options, image, *arguments, check=False)


def image_facts(image: str) -> dict[str, Any]:
    """Return what podman says of an image."""
    facts: dict[str, Any] = json.loads(podman("image", "inspect", image).stdout)[0]
    return facts
