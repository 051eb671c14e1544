"""What benchmarks do with processes."""

from __future__ import annotations

import os
import subprocess

from benchmarks.load.engines import idle_priority


def test_a_process_aside_runs_on_idle_processors():
    """And as before afterwards; one that has ended meanwhile is no error."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with idle_priority(process.pid):
                assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
            assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER
            with idle_priority(process.pid):
                process.kill()
                process.wait()
        finally:
            process.kill()
