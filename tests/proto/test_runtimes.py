"""The generated code on the protobuf runtimes that vLLM versions in use pin."""

import pytest

from tests.support.agent.descriptors import messages
from tests.support.agent.runtimes import RUNTIMES, run_with_runtime


@pytest.mark.parametrize("version", RUNTIMES)
def test_every_message_makes_the_round_trip(version: str) -> None:
    """No warning, no error, nothing lost: vLLM decides which runtime there is, not we."""
    done = run_with_runtime(version, "tests.support.agent.round_trip")

    assert done.returncode == 0, done.stderr
    found, count = done.stdout.split()
    assert found == version
    assert int(count) == len([message for message in messages() if message.containing_type is None])
