"""Sampled stacks: whose share it is."""

from __future__ import annotations

import pytest

from benchmarks.harness.stack_samples import Profile, Stack, top

SITE = "/venv/lib/python3.11/site-packages"
OURS = "/src/instrumentation/penstock/instrumentation"
RAW = f"""\
thread (10): MainThread;<module> (<string>);step ({SITE}/vllm/core.py);schedule ({OURS}/vllm/scheduler.py);schedule ({SITE}/vllm/sched.py) 6
thread (10): MainThread;<module> (<string>);step ({SITE}/vllm/core.py);schedule ({OURS}/vllm/scheduler.py);emit ({OURS}/emitter.py:12) 1
thread (10): MainThread;<module> (<string>);step ({SITE}/vllm/core.py) 1
thread (11): penstock-exporter;run (/usr/lib/python3.11/threading.py);seal ({OURS}/encode.py) 2
"""


def test_threads_and_frames_are_told_apart():
    """Files are named from their package on; lines of code are left out."""
    profile = Profile.parse(RAW)
    assert profile.samples == 10
    assert profile.stacks[1] == Stack(
        "MainThread",
        10,
        [
            "<module> (<string>)",
            "step (vllm/core.py)",
            "schedule (penstock/instrumentation/vllm/scheduler.py)",
            "emit (penstock/instrumentation/emitter.py)",
        ],
        1,
    )
    assert profile.names() == {10: "MainThread", 11: "penstock-exporter"}
    assert profile.by_thread() == {"MainThread": 8, "penstock-exporter": 2}


def test_own_time_is_of_the_frame_that_runs():
    """What a hook's host does inside the hook is the host's."""
    profile = Profile.parse(RAW)
    assert profile.own()["schedule (vllm/sched.py)"] == 6
    assert profile.run_by("penstock/instrumentation") == 3
    assert profile.without(("penstock-",)).run_by("penstock/instrumentation") == 1
    assert profile.only(("penstock-",)).samples == 2


def test_entered_time_is_of_the_first_frame_of_ours():
    """With all that it calls."""
    entered = Profile.parse(RAW).without(("penstock-",)).within("penstock/instrumentation")
    assert entered == {"schedule (penstock/instrumentation/vllm/scheduler.py)": 7}


def test_a_list_has_shares_of_all_samples():
    """The largest first."""
    profile = Profile.parse(RAW)
    assert top(profile.by_thread(), profile.samples, 1) == " 80.0 %  MainThread"


def test_stacks_without_names_of_threads():
    """As py-spy writes them without ``--threads``."""
    (stack,) = Profile.parse("main (a.py);f (b.py) 3\n\n").stacks
    assert stack == Stack("", 0, ["main (a.py)", "f (b.py)"], 3)


def test_another_format_is_refused():
    """And not read as an empty profile."""
    with pytest.raises(ValueError, match="raw format"):
        Profile.parse('{"$schema": "speedscope"}')


def test_a_thread_without_a_name_goes_by_its_id():
    """And is no frame, though it looks like one."""
    (stack,) = Profile.parse("thread (12);f (b.py) 1").stacks
    assert stack == Stack("thread (12)", 12, ["f (b.py)"], 1)
