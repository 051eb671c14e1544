"""What the report of a failing test names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import where_to_look

ROOT = Path(__file__).parents[1]
FAILS = """
from tests.support.agent.agent import short_directory


def test_fails():
    with short_directory() as directory:
        (directory / "agent.log").write_text("the reason")
        assert not directory
"""


def test_a_test_file_mirrors_the_product() -> None:
    """Its module where there is one of its name, else its package; what runs engines names how they are started."""
    tests = ROOT / "tests"
    assert where_to_look.places(tests / "agent/journal/commit/test_retention.py") == [
        "agent/penstock/agent/journal/commit/retention.py"
    ]
    assert where_to_look.places(tests / "agent/journal/test_damage.py") == ["agent/penstock/agent/journal"]
    assert "demo/servers.py" in where_to_look.places(tests / "e2e/test_demo.py")
    assert where_to_look.places(tests / "test_names.py") == []


def test_a_failing_test_names_files(tmp_path: Path) -> None:
    """The test, and a copy of the log of an agent that is gone with its directory."""
    test = tmp_path / "test_fails.py"
    test.write_text(FAILS)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(ROOT)]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(test)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    where = ran.stdout.partition("Where to look")[2]
    assert f"{test.name}:5" in where
    (log,) = [line.split()[1] for line in where.splitlines() if line.startswith("log ")]
    assert (ROOT / log).read_text() == "the reason"
