"""A shell that reads the page's command lines."""

from __future__ import annotations

import subprocess


def words_of(line: str) -> list[str]:
    """Return what agentctl gets from bash, of a line that can be printed."""
    assert line.isprintable()
    ran = subprocess.run(
        ["bash", "-c", f"agentctl() {{ printf '%s\\0' \"$@\"; }}; {line}"],
        env={"LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return ran.stdout.decode().split("\0")[:-1]
