"""A short round of ordinary life (``make calm`` has the long one): nobody is woken, and nothing is told that is not true."""

from __future__ import annotations

import pytest

from tests.calm.__main__ import main

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_nobody_is_woken_by_ordinary_life(capsys: pytest.CaptureFixture[str]) -> None:
    """Each phase once, as short as its processes allow."""
    code = main(["--minutes", "0", "--pace", "0.2", "--seed", "1"])
    assert code == 0, capsys.readouterr().out
