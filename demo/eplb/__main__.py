"""The expert demo, ``make demo-eplb``: two processes move real expert weights through vLLM's load balancer."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demo.common.command import run
from demo.common.console import command, heading, paragraph, samples, say
from demo.common.processes import Child, ChildError, free_port
from demo.common.progress import begin_phase, report
from demo.common.steps import StepError, until
from demo.common.workspace import run_directory, start_agent
from demo.eplb.weight_maps import Moves, moves_of
from demo.servers import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from demo.common.agent import Agent
    from demo.common.otlp_receiver import Receiver, Span

RANKS = 2
ASYNCHRONOUS = ("--asynchronous", "--steps", "60", "--interval", "50")
"""Arguments of ranks that receive layers in a thread: enough steps for one rebalance of all layers."""

_COUNTERS = (
    "penstock_eplb_rebalances_total",
    "penstock_eplb_experts_total",
    "penstock_eplb_pause_seconds_sum",
    "penstock_eplb_rebalance_duration_seconds_sum",
    "penstock_transfers_total",
    "penstock_transfer_failures_total",
)


@dataclass(frozen=True, slots=True)
class RanksRun:
    """A finished group of ranks.

    Attributes:
        codes: exit code of each rank.
        moves: by rank and layer, computed from the files that the ranks wrote; empty unless all exited with 0.

    """

    out: Path
    codes: tuple[int, ...]
    moves: tuple[tuple[Moves, ...], ...] = ()


def run_ranks(
    agent: Agent,
    out: Path,
    *arguments: str,
    dying: int | None = None,
    late: int | None = None,
    server: str = "experts",
) -> RanksRun:
    """Run a group of ranks to its end.

    Args:
        agent: what the ranks report to.
        out: a new directory for what they write.
        arguments: of each rank.
        dying: the rank that kills itself in the middle of its first transfer.
        late: the rank that begins each transfer half a second later than the others.
        server: its name in the agent.

    Raises:
        ChildError: a rank failed, or makes no progress.

    """
    out.mkdir()
    port = free_port()
    environment = {
        **os.environ,
        "PENSTOCK_ENDPOINT": agent.endpoint,
        "PENSTOCK_SERVER": server,
        "PENSTOCK_LABELS": "role=decode",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
        # What PyTorch leaves goes with the directory.
        "TMPDIR": str(out),
    }
    with ExitStack() as ended:
        children = []
        for rank in range(RANKS):
            command = [
                *(sys.executable, "-m", "demo.eplb.rank", "--rank", str(rank), "--ranks", str(RANKS)),
                *("--port", str(port), "--out", str(out), *arguments, *(["--die"] if rank == dying else [])),
                *(["--stall", "0.5"] if rank == late else []),
            ]
            child = Child(f"rank {rank}", command, env=environment, cwd=out, log=out / f"rank{rank}.log")
            ended.callback(child.stop)
            children.append(child)
        codes = tuple(child.wait() for child in children)
        if dying is None and any(codes):
            bad = next(child for child, code in zip(children, codes, strict=True) if code)
            raise ChildError(bad.ended())
    return RanksRun(out, codes, moves_of(out, RANKS) if dying is None else ())


def rebalances(agent: Agent, server: str = "experts") -> list[dict[str, Any]]:
    """Return the events of rebalances of *server*, as ``agentctl -o json`` prints them, oldest first."""
    listed = agent.ctl_json(
        "get", "events", "--channel", "eplb", "--kind", "eplb_rebalance", "--limit", "1000"
    )
    return [entry for entry in listed["events"] if entry["key"].get("server") == server]


def _print_records(agent: Agent, server: str) -> None:
    metrics = agent.metrics()
    samples(sample for name in _COUNTERS for sample in metrics.select(name, server=server))
    command(agent, "get", "events", "--channel", "eplb", "--limit", "4")


def _verify(ran: RanksRun, events: Sequence[dict[str, Any]]) -> None:
    """Compare the reported layers with the real moves."""
    for event in events:
        reported = event["event"]["eplbRebalance"]["layers"]
        rank = int(event["event"].get("rank", 0))
        for layer, moved in zip(reported, ran.moves[rank], strict=True):
            if int(layer.get("recvCount", 0)) != moved.received:
                raise StepError(f"rank {rank}, layer {moved.layer}: reported {layer}, moved {moved}")


def _good(agent: Agent, directory: Path, mode: str, *arguments: str) -> None:
    heading(f"Two ranks rebalance their experts, {mode}")
    server = f"experts-{mode}"
    ran = run_ranks(agent, directory / mode, *arguments, server=server)
    events = until(
        lambda: found if len(found := rebalances(agent, server)) >= RANKS else None,
        "agentctl get events shows no rebalance",
    )
    _verify(ran, events)
    received = sum(moves.received for rank in ran.moves for moves in rank)
    paragraph(
        f"{received} experts came from the other rank; the reported counts match each rank's maps and weights."
    )
    _print_records(agent, server)


def _print_traces(receiver: Receiver) -> None:
    heading("The rebalances as traces")
    spans = until(
        lambda: found if len(found := _rebalance_spans(receiver)) > RANKS * 2 else None,
        "the trace backend did not get every eplb.rebalance",
    )
    for span in spans:
        say(f"Trace {span.trace_id} in {receiver.endpoint}:")
        for each in receiver.spans(span.trace_id):
            _print_span(each)


def _rebalance_spans(receiver: Receiver) -> list[Span]:
    return [span for span in receiver.spans() if span.name == "eplb.rebalance"]


def _print_span(span: Span) -> None:
    what = span.attributes
    took = f"{(span.end - span.start) / 1e6:.1f} ms"
    moved = f"{what.get('penstock.experts_received_remotely', 0)} experts from other ranks"
    indent, error = "    " if span.parent_id else "  ", ", ERROR" if span.error else ""
    say(f"{indent}{span.name} {took}, {moved}, {what.get('penstock.bytes', 0)} bytes{error}")


def _failed(agent: Agent, directory: Path) -> None:
    heading("Rank 1 dying in the middle of a transfer")
    server = "experts-dying"
    run_ranks(agent, directory / "dying", dying=1, server=server)
    until(
        lambda: agent.metrics().value("penstock_transfer_failures_total", server=server),
        "penstock_transfer_failures_total does not count the failure",
    )
    _print_records(agent, server)


def _play() -> None:
    with run_directory() as (directory, parts):
        begin_phase("the agent starts")
        backend = start_agent(directory, parts, report)
        _good(backend.agent, directory, "synchronously")
        _good(backend.agent, directory, "asynchronously", *ASYNCHRONOUS)
        _failed(backend.agent, directory)
        if backend.receiver is not None:
            _print_traces(backend.receiver)


if __name__ == "__main__":
    sys.exit(
        run(
            "make demo-eplb",
            "Run two processes that move real expert weights through vLLM's load balancer.",
            _play,
            keeps=False,
        )
    )
