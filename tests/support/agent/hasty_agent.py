"""The real agent with short intervals, run as ``python -m``: what waits for seconds waits for tenths.

Its polls, sweeps and grace periods are those of ``penstock.agent`` divided by ten; nothing else differs.
"""

from __future__ import annotations

from functools import partial


def shorten() -> None:
    """Divide the intervals by ten."""
    from penstock.agent.admin.lookups import retirement
    from penstock.agent.daemon import opened_state
    from penstock.agent.policy.distribution import traced_policies
    from penstock.agent.policy.files import file_source
    from penstock.agent.traces.assembly.model import AssemblyLimits
    from penstock.agent.traces.export import exporter, journal_tail
    from penstock.agent.traces.query import search

    for module, name in (
        (opened_state, "_BACK_OFF_SECONDS"),
        (exporter, "_AGAIN_SECONDS"),
        (exporter, "_POLL_SECONDS"),
        (file_source, "POLL_SECONDS"),
        (file_source, "SETTLE_SECONDS"),
        (journal_tail, "_SOURCE_SECONDS"),
        (retirement, "_SWEEP_SECONDS"),
        (traced_policies, "_FRESH_SECONDS"),
    ):
        setattr(module, name, getattr(module, name) / 10)
    limits = partial(AssemblyLimits, grace_nano=AssemblyLimits().grace_nano // 10)
    for reader in (exporter, search):
        setattr(reader, "AssemblyLimits", limits)  # noqa: B010  (no attribute of the module, for mypy)


if __name__ == "__main__":
    from penstock.agent.__main__ import agent

    shorten()
    agent()
