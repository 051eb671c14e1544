"""What benchmarks do with processes."""

from __future__ import annotations

import os
import subprocess

from benchmarks.load.engines import aside


def test_who_is_aside_runs_where_nobody_else_wants_to():
    """And as before afterwards; one that has ended meanwhile is no error."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with aside(process.pid):
                assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
            assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER
            with aside(process.pid):
                process.kill()
                process.wait()
        finally:
            process.kill()
