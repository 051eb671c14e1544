"""docs/reference/configuration.md says of each ``OTEL_*`` variable what the agent does with it."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.agent.traces.assembly import Sampler
from penstock.agent.traces.export.otel_variables import VARIABLES, effect_of
from penstock.agent.traces.spans.ids import TraceContext

_TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text()
_ROW = re.compile(r"^\| (`OTEL_[^|]*) \| ([^|]+) \| ", re.MULTILINE)


def test_every_variable_is_documented_with_its_effect() -> None:
    """The table lists each pattern once, with what the code does."""
    rows = [(name, effect) for names, effect in _ROW.findall(_TEXT) for name in re.findall(r"`(\S+)`", names)]
    documented = dict(rows)
    assert len(rows) == len(documented)
    assert documented == {variable.pattern: variable.effect.value for variable in VARIABLES}
    assert {name: effect_of(name).effect.value for name in documented} == documented


def test_the_table_of_samplers() -> None:
    """What each sampler does with a caller's decision."""
    words: dict[tuple[float, ...], str] = {(0.0, 0.0): "dropped", (1.0, 1.0): "kept", (0.0, 1.0): "the ratio"}
    traces = ["0" * 32, "f" * 32]
    contexts = [None, *(TraceContext(traces[0], "1" * 16, sampled) for sampled in (True, False))]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", _TEXT, re.MULTILINE)
    assert len(rows) == 4
    for name, *cells in rows:
        sampler = Sampler.named(name, 1.0 if name.endswith("always_on") else 0.5)
        # The high id first: it is outside half of them.
        found = [
            tuple(float(sampler.wants(trace, context)) for trace in traces[::-1]) for context in contexts
        ]
        assert [words[pair] for pair in found] == cells, name
