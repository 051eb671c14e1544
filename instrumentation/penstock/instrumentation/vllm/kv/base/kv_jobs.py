"""The jobs of one connector that have begun and not ended, by its own numbers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.kv.base.connector_adapters import Done, Job, JobAdapter

JOBS_MAX: Final = 8_192
"""Jobs that are remembered; beyond that the oldest is not told."""


class JobTable:
    """What a worker's connector does beside the steps."""

    def __init__(self, jobs: JobAdapter) -> None:
        """Keep the jobs of a connector that names them so."""
        self._jobs = jobs
        self._begun: dict[int, Job] = {}

    def begin(self, metadata: Any) -> None:
        """Take in the jobs of a step."""
        for job in self._jobs.begun(metadata):
            if len(self._begun) >= JOBS_MAX:
                del self._begun[next(iter(self._begun))]
            self._begun[job.number] = job

    def end(self, metadata: Any) -> list[tuple[Job, Done]]:
        """Return the jobs that have ended, as the worker's *metadata* says."""
        return [
            (self._begun.pop(done.number), done)
            for done in list(self._jobs.done(metadata, {n: job.direction for n, job in self._begun.items()}))
        ]
