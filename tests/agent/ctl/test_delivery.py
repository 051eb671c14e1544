"""Progress of a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.agent.ctl.delivery import follow_delivery
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_ctrl_c_says_that_the_change_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupt prints that the change stays."""

    def rollouts() -> Iterator[admin.Rollout]:
        yield admin.Rollout(engines=[{"key": {"engine": "0"}, "state": "waiting"}])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow_delivery(rollouts(), "policy p", quiet=False)
    captured = capsys.readouterr()
    assert captured.out == "engine 0 waiting\n"
    assert captured.err.startswith("no longer waiting for policy p; the change stays")
