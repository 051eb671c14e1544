"""What a demo says at its failure: the lines of a log that tell, and what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.common.last_words import Machine, advice, excerpt, telling_lines, troubled

if TYPE_CHECKING:
    from pathlib import Path

_API = "(APIServer pid=10222) "
_CORE = "(EngineCore pid=10757) "
_AT = "11-28 04:05:37"
_BANNER = f"""\
{_API}INFO {_AT} [api_utils.py:347]
{_API}INFO {_AT} [api_utils.py:347]        █     █     █▄   ▄█
{_API}INFO {_AT} [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0
{_API}INFO {_AT} [api_utils.py:347]   █▄█▀ █     █     █     █  model   tiny
{_API}INFO {_AT} [api_utils.py:347]    ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀
"""
_FAILED = f"""\
{_BANNER}{_API}WARNING {_AT} [cpu.py:224] Triton is not installed.
{_CORE}ERROR {_AT} [core.py:1100] EngineCore failed to start.
{_CORE}ERROR {_AT} [core.py:1100] Traceback (most recent call last):
{_CORE}ERROR {_AT} [core.py:1100]   File "core.py", line 7, in run
{_CORE}ERROR {_AT} [core.py:1100] ValueError: No available memory for the cache blocks.
{_CORE}Process EngineCore:
{_CORE}Traceback (most recent call last):
{_CORE}ValueError: No available memory for the cache blocks.
{_API}Traceback (most recent call last):
{_API}  File "api_server.py", line 9, in main
{_API}RuntimeError: Engine core initialization failed. See root cause above.
"""


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        pytest.param(
            _FAILED,
            [
                "ValueError: No available memory for the cache blocks.",
                "RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            id="exceptions: the cause and what came of it, each once",
        ),
        pytest.param(
            f"{_BANNER}{_CORE}ERROR {_AT} [core.py:1] no port\n{_CORE}INFO {_AT} [core.py:2] bye\n",
            ["no port"],
            id="errors without an exception",
        ),
        pytest.param(
            f"{_BANNER}{_API}WARNING {_AT} [cpu.py:224] slow\n{_API}INFO {_AT} [a.py:1] more\nKilled\n",
            ["slow", "Killed"],
            id="what is no routine",
        ),
        pytest.param(
            f"{_BANNER}{_API}INFO {_AT} [model.py:2152] Using max model len 2048\n",
            ["Using max model len 2048"],
            id="routine, where there is nothing else",
        ),
        pytest.param(_BANNER, [], id="the banner alone"),
        pytest.param("", [], id="nothing"),
        pytest.param(
            '{"event": "agent ready", "level": "info"}\n{"event": "cannot bind", "level": "error"}\n',
            ['{"event": "cannot bind", "level": "error"}'],
            id="the agent's log",
        ),
        pytest.param(
            "[7] 2026/11/28 04:02:11.1 [INF] Starting\n[7] 2026/11/28 04:02:11.2 [FTL] no space\n",
            ["[7] 2026/11/28 04:02:11.2 [FTL] no space"],
            id="that of NATS",
        ),
        pytest.param(
            "I1128 04:02:11.1 server.go:1] Version\nE1128 04:02:12.1 server.go:2] refused\n",
            ["E1128 04:02:12.1 server.go:2] refused"],
            id="that of the API server",
        ),
    ],
)
def test_the_lines_that_tell(log: str, lines: list[str]) -> None:
    """They are those that a person would look for; never the banner, of which failures were mostly made."""
    assert telling_lines(log) == lines


def test_of_many_exceptions_the_first_stays() -> None:
    """It is the cause, however many follow."""
    log = "\n".join(f"ValueError: {number}" for number in range(100))
    assert telling_lines(log, 3) == ["ValueError: 0", "ValueError: 98", "ValueError: 99"]


def test_a_long_line_is_cut() -> None:
    """A configuration of vLLM is one line of kilobytes."""
    (line,) = telling_lines("ValueError: " + "x" * 5000)
    assert len(line) == 220
    assert line.endswith("x…")


def test_an_excerpt_names_its_log(tmp_path: Path) -> None:
    """With the path first; also one that says nothing or is not there: the path is what a person needs."""
    log = tmp_path / "prefill.log"
    assert excerpt(log) == f"{log} cannot be read: No such file or directory."
    log.write_text(_BANNER)
    assert excerpt(log) == f"{log} says nothing."
    log.write_text(_FAILED)
    assert excerpt(log, 1) == (
        f"{log} says:\n  RuntimeError: Engine core initialization failed. See root cause above."
    )


def test_logs_with_trouble(tmp_path: Path) -> None:
    """A warning is none: vLLM always warns."""
    calm, bad, gone = (tmp_path / name for name in ("calm.log", "bad.log", "gone.log"))
    calm.write_text(f"{_BANNER}{_API}WARNING {_AT} [cpu.py:224] Triton is not installed.\n")
    bad.write_text(_FAILED)
    assert troubled([calm, bad, gone]) == [bad]


def test_what_to_try() -> None:
    """The advice follows from the machine and from how processes ended; it always ends with the log."""
    idle = Machine(cores=2, load=0.5, free_gib=6.0)
    assert len(advice(idle)) == 1
    assert "log" in advice(idle)[-1]
    assert "load 20 on 2 cores" in advice(Machine(cores=2, load=20.0, free_gib=6.0))[0]
    assert "0.5 GiB" in advice(Machine(cores=2, load=1.0, free_gib=0.5))[0]
    assert "killed" in advice(idle, codes=[-9])[0]
    assert "make setup" in advice(idle, codes=[1])[0]


def test_the_machine_is_looked_at() -> None:
    """It has a core and some memory."""
    machine = Machine.now()
    assert machine.cores >= 1
    assert machine.free_gib > 0
