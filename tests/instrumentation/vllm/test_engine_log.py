"""Our lines in the log of a real vLLM: its handler writes them, once, with level, time and process."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

from penstock.instrumentation.vllm.zmq_ec.consumer import producers

from tests.support.engine.versions import VERSION

PREFIX = (
    r"\(\S+ pid=\d+\) " if VERSION >= (0, 31) else ""
) + r"{level} \d\d-\d\d \d\d:\d\d:\d\d \[[^]]+:\d+\] "


def test_vllms_handler_writes_our_lines_once() -> None:
    """A contained error, a wrong setting and a line of ZmqECConnector have the prefix of vLLM's own lines."""
    script = f"""
    import logging
    import vllm.logger
    vllm.logger._configure_vllm_root_logger()
    from penstock.instrumentation import plugin
    from penstock.instrumentation.core import guard
    plugin.register()
    with guard("nixl.poll"):
        raise ValueError("broken")
    logging.getLogger("{producers.logger.name}").warning("ZmqECConnector: a line")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={
            "PATH": "/usr/bin:/bin",
            "PENSTOCK_ENDPOINT": "nowhere",
            "PENSTOCK_GUARD": "contain",
            "VLLM_LOGGING_COLOR": "0",
            "VLLM_LOGGING_STREAM": "ext://sys.stdout",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    for level, words in (
        ("ERROR", "penstock stays off: PENSTOCK_ENDPOINT='nowhere'"),
        ("WARNING", "penstock contained an error of its own in nixl.poll"),
        ("WARNING", "ZmqECConnector: a line"),
    ):
        lines = [line for line in done.stdout.splitlines() if words in line]
        assert len(lines) == 1, done.stdout
        assert re.match(PREFIX.format(level=level) + re.escape(words), lines[0]), lines[0]
    assert "penstock" not in done.stderr
