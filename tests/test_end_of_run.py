"""A test run that gets a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEST = """
import os, signal, time
from pathlib import Path
import pytest

@pytest.fixture
def engine():
    yield
    Path("stopped").touch()

def test_long(engine):
    os.kill(int(Path("controller").read_text()), signal.SIGTERM)
    time.sleep(30)
    Path("went-on").touch()
"""


def test_sigterm_reaches_the_controller_only(tmp_path: Path) -> None:
    """As ``make`` and CI send it; the workers end as well, and stop what they have started."""
    (tmp_path / "test_long.py").write_text(TEST)
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]
    options = ["-p", "xdist.plugin", "-p", "tests.conftest", "-n", "1", "-c", os.devnull, "--rootdir", "."]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "test_long.py"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as controller:
        (tmp_path / "controller").write_text(str(controller.pid))
        printed, _ = controller.communicate(timeout=180)
    assert (tmp_path / "stopped").exists(), printed.decode()
    assert not (tmp_path / "went-on").exists()
