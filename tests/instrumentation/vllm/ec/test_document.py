"""docs/connectors.md has a row about every EC connector in vLLM's factory."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from tests.support.engine.versions import from_version

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "connectors.md"


@from_version(0, 30, "has fewer connectors")
def test_the_tables_are_complete() -> None:
    """The tables of what was run and of quarantine and drills each have vLLM's connectors and Penstock's."""
    _, _, section = DOCUMENT.read_text().partition("\n## EC connectors\n")
    section, _, _ = section.partition("\n### ")
    tables = [re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE) for table in section.split("\n\n")]
    expected = {*ECConnectorFactory._registry, "ZmqECConnector"}
    assert [set(rows) for rows in tables if len(rows) > 1] == [expected, expected]
