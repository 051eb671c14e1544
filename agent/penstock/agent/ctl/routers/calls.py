"""Calls to a router that takes servers out and in by its API: vllm-router and sglang-router."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.routers.exchange import Exchange
from penstock.agent.views import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.ctl.routers.endpoints import EndpointState

ROUTERS: Final = ("vllm-router", "sglang-router")
CALL_SECONDS: Final = 5.0
"""From a call to the end of its answer."""
# What all calls of a look, and of the end, take together.
_LOOK_SECONDS: Final = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 30.0
_CHECK_SECONDS: Final = 30.0
_OK: Final = range(200, 300)
_BAD_REQUEST, _NOT_FOUND = 400, 404
_DISAGGREGATED: Final = (
    "{url} is a {kind} worker of {router}, which takes no such worker back once it is removed: nothing is taken out; "
    "use the readiness path (docs/guides/routers.md, 'What routers take')"
)


class NotTakenBackError(FailedError):
    """The router would not take a worker back."""


class _CallError(Exception):
    """A call has failed; its text is for people."""


class _Answer(NamedTuple):
    status: int
    body: bytes

    def sentence(self) -> str:
        return f"{self.status}: {text.one_line(self.body[:1000].decode(errors='replace'), 200)}"


class RouterCalls:
    """One router, and which endpoints this command has taken out of it.

    Args:
        router: its address.
        kind: of ``ROUTERS``.
        dry_run: whether calls are only told.

    """

    def __init__(self, router: str, kind: str, *, dry_run: bool = False) -> None:
        self.name = self._router = router
        self._kind = kind
        self._dry_run = dry_run
        self._out: set[str] = set()
        # Those of which a removal was tried: they may be out, whatever was answered.
        self._touched: set[str] = set()
        # By endpoint, and whether it comes back.
        self._retries: dict[tuple[str, bool], tuple[float, float]] = {}
        self._problems: dict[str, str] = {}
        self._next_check = 0.0

    def apply(self, out: Mapping[str, EndpointState], now: float) -> list[str]:
        """Let all be in but those of *out*; return sentences about what could not be done.

        What fails is tried again by a later call, after a pause. *now* is the time of the monotonic clock.

        Raises:
            NotTakenBackError: it would not take a worker back.

        """
        ends = time.monotonic() + _LOOK_SECONDS
        self._compare(now, ends)
        # First those that come back.
        turns = [*((url, True) for url in sorted(self._touched - out.keys()))]
        turns += [(url, False) for url in sorted(out.keys() - self._out)]
        for turn in self._retries.keys() - set(turns):
            del self._retries[turn]
        told = []
        for url, back in turns:
            again, pause = self._retries.get((url, back), (now, _FIRST_PAUSE))
            if again > now or time.monotonic() >= ends:
                continue
            if self._dry_run:
                told.append(self._pretend(url, back=back))
                continue
            try:
                (self._add if back else self._remove)(url, ends)
            except _CallError as error:
                self._retries[url, back] = (now + pause, min(2 * pause, _LONGEST_PAUSE))
                what = f"take {url} back" if back else f"let go of {url}"
                problem = f"{self._router} does not {what}: {error}"
                if problem != self._problems.get(url):
                    told.append(problem)
                self._problems[url] = problem
        return told

    def restore(self) -> list[str]:
        """Put all back that may be out, within ten seconds; return sentences about those that are not."""
        if self._dry_run:
            return []
        ends = time.monotonic() + _LOOK_SECONDS
        told = []
        for url in sorted(self._touched):
            if time.monotonic() >= ends:
                break
            try:
                self._add(url, ends)
            except NotTakenBackError as error:
                told.append(error.message)
            except Exception as error:  # noqa: BLE001  (whatever it is, the others come back)
                told.append(f"{self._router} does not take {url} back: {error}")
        return [
            *told,
            *(f"{url} is still out of {self._router}: add it there" for url in sorted(self._touched)),
        ]

    def _pretend(self, url: str, *, back: bool) -> str:
        if back:
            self._is_in(url)
            return f"would add {url} to {self._router}"
        self._out.add(url)
        self._touched.add(url)
        return f"would remove {url} from {self._router}"

    def _is_in(self, url: str) -> None:
        self._out.discard(url)
        self._touched.discard(url)
        self._is_done(url)

    def _is_done(self, url: str) -> None:
        for back in (False, True):
            self._retries.pop((url, back), None)
        self._problems.pop(url, None)

    def _remove(self, url: str, ends: float) -> None:
        listed = self._listed(ends)
        workers = [each for each in listed if _is_of(each["url"], url)]
        for worker in workers:
            kind = worker.get("worker_type") or "regular"
            if kind != "regular":
                raise NotTakenBackError(
                    _DISAGGREGATED.format(url=url, kind=text.one_line(str(kind), 20), router=self._router)
                )
        if not workers:
            if url not in self._touched:
                raise _CallError("it has no such worker, so it is not added either")
        elif self._kind == "vllm-router":
            self._touched.add(url)
            _check(self._ask("POST", f"/remove_worker?url={quote(url, safe='')}", ends))
        else:
            self._touched.add(url)
            for worker in workers:
                _check(self._ask("DELETE", f"/workers/{quote(str(worker.get('id')), safe='')}", ends))
        self._out.add(url)
        self._is_done(url)

    def _add(self, url: str, ends: float) -> None:
        if self._kind == "vllm-router":
            answer = self._ask("POST", f"/add_worker?url={quote(url, safe='')}", ends)
        else:
            answer = self._ask("POST", "/workers", ends, {"url": url})
        if answer.status == _BAD_REQUEST:
            if b"already exists" in answer.body:
                self._is_in(url)
                return
            if b"PD router" in answer.body:
                raise NotTakenBackError(
                    f"{self._router} does not take {url} back ({answer.sentence()}): with prefill and decode it takes "
                    "no removed server back; restart it, and use the readiness path (docs/guides/routers.md)"
                )
        _check(answer)
        self._is_in(url)

    def _compare(self, now: float, ends: float) -> None:
        """Find out now and then whether what was taken out is in again: a router that has restarted has all."""
        if not self._out or self._dry_run:
            self._next_check = now + _CHECK_SECONDS
        elif now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            with suppress(_CallError):
                urls = [each["url"] for each in self._listed(ends)]
                self._out = {url for url in self._out if not any(_is_of(each, url) for each in urls)}

    def _listed(self, ends: float) -> list[dict[str, Any]]:
        """Return the workers of the router, each with a URL.

        Raises:
            _CallError: it does not say.

        """
        answer = self._ask("GET", "/workers", ends)
        if answer.status == _NOT_FOUND:
            raise _CallError(
                "it has no GET /workers, so nobody knows whether it takes a removed server back; upgrade it"
            )
        _check(answer)
        try:
            return [{**each, "url": str(each["url"])} for each in json.loads(answer.body)["workers"]]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise _CallError(f"GET /workers answers otherwise than {self._kind} does; see --router") from None

    def _ask(self, method: str, path: str, ends: float, body: Mapping[str, str] | None = None) -> _Answer:
        """Return the answer to a call.

        Raises:
            _CallError: there is none in time, or it is too large.

        """
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        ends = min(ends, time.monotonic() + CALL_SECONDS)
        try:
            return _Answer(*Exchange(method, f"{self._router}{path}", data, headers).answer(ends))
        except TimeoutError:
            raise _CallError(f"no answer in {CALL_SECONDS:.0f} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _CallError(f"no answer ({text.one_line(str(error) or type(error).__name__)})") from None


def _check(answer: _Answer) -> None:
    """Check that a call is done.

    Raises:
        _CallError: it is not.

    """
    if answer.status not in _OK:
        raise _CallError(answer.sentence())


def _is_of(worker: str, url: str) -> bool:
    """Return whether a worker is an endpoint, or a rank of it (``http://host:port@0``)."""
    return worker.rstrip("/") == url or worker.partition("@")[0] == url
