"""Requests to the API server: a list in pages, a watch as a stream of lines. Bounded in bytes, number and time.

The protocol: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from penstock.agent.errors import ClusterError, ConflictError, NotFoundError
from penstock.agent.policy.kubernetes.access import LEASE, PODS, STATUS, MissingError, refusal
from penstock.agent.policy.kubernetes.objects import ClusterObject, read_object, resource_version

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from penstock.agent.policy.kubernetes.access import ClusterAccess

GROUP = "apis/penstock.dev/v1alpha1"
RESOURCE = "transferpolicies"
MAX_OBJECTS = 256
MAX_PODS = 2_000
_PODS_PAGE = 100
# An object in etcd has at most 1.5 MiB: so many fit in a page, whatever they have.
_OBJECTS_PAGE = 20
_MAX_LINE_BYTES = 2 << 20
_MAX_PAGE_BYTES = 32 << 20
_MAX_ERROR_BYTES = 64 * 1024
_MAX_DISCOVERY_BYTES = 1 << 20
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 20.0
_LIST_SECONDS = 60.0
# The server ends a watch after this time, each at another; the client waits a little longer.
_WATCH_SECONDS = (240, 300)
_WATCH_GRACE_SECONDS = 15.0
# A server whose host or network is gone is noticed after 15 + 3 * 5 s.
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
_FIELD_MANAGER = "penstock-relay"


class ApiClient:
    """One connection's requests; the loop's. Each method raises ClusterError for what goes wrong."""

    def __init__(self, access: ClusterAccess) -> None:
        """Open no connection yet."""
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        try:
            connector = aiohttp.TCPConnector(ssl=self._access.tls(), limit=2)
        except OSError as error:
            raise ClusterError(
                f"the CA file {self._access.ca_file} cannot be used: {error.strerror or error}"
            ) from None
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            # A compressed answer could be larger than what is read of it.
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def list_objects(self) -> tuple[dict[str, ClusterObject], str]:
        """Return all objects by name, and the resource version of the list."""
        values, revision = await self._list()
        try:
            return dict(map(read_object, values)), revision
        except (TypeError, AttributeError, ValueError) as error:
            raise ClusterError(
                f"the API server's answer is not a list of policies ({error!s:.100})"
            ) from None

    async def list_values(self) -> list[dict[str, Any]]:
        """Return all objects as the API server has them."""
        values, _ = await self._list()
        if not all(isinstance((value.get("metadata") or {}).get("name"), str) for value in values):
            raise ClusterError("the API server's answer is not a list of policies")
        return values

    async def _list(self) -> tuple[list[dict[str, Any]], str]:
        found: list[dict[str, Any]] = []
        parameters = {"limit": str(_OBJECTS_PAGE)}
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                while True:
                    page = await self._page(parameters)
                    found += [dict(value) for value in page["items"] or ()]
                    if len(found) > MAX_OBJECTS:
                        raise ClusterError(
                            f"namespace {self._access.namespace} has more than {MAX_OBJECTS} TransferPolicy objects; combine some"
                        )
                    proceed = page["metadata"].get("continue")
                    if not proceed:
                        return found, resource_version(page)
                    parameters["continue"] = proceed
        except TimeoutError:
            raise ClusterError(
                f"the API server did not list the policies within {_LIST_SECONDS:.0f} s"
            ) from None
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ClusterError(
                f"the API server's answer is not a list of policies ({error!s:.100})"
            ) from None

    async def is_defined(self) -> bool:
        """Return whether the definition of the objects stays: one that is being deleted takes no new objects."""
        response = await self._get({}, "discover", f"{self._access.url}/{GROUP}")
        try:
            found = json.loads(await _body(response, _MAX_DISCOVERY_BYTES))
            verbs = [each["verbs"] for each in found["resources"] if each["name"] == RESOURCE]
        except (aiohttp.ClientError, OSError) as error:
            raise ClusterError(f"the discovery was interrupted: {_reason(error)}") from None
        except (ValueError, RecursionError, KeyError, TypeError):
            raise ClusterError("the API server's discovery is not a list of resources") from None
        finally:
            response.close()
        return any("create" in each for each in verbs)

    async def watch(self, revision: str) -> AsyncGenerator[list[tuple[str, Any]], None]:
        """Yield the changes after *revision*, those that came together at once, as (type, object).

        The first list is empty: the server has accepted the watch. It ends when the server ends it.
        """
        seconds = random.randint(*_WATCH_SECONDS)  # noqa: S311  (no secret: it spreads the load)
        parameters = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": revision,
            "timeoutSeconds": str(seconds),
        }
        response = await self._get(parameters, "watch", self._objects_url())
        try:
            _keep_alive(response)
            yield []
            deadline = asyncio.get_running_loop().time() + seconds + _WATCH_GRACE_SECONDS
            async for lines in _lines(response, deadline):
                yield [_event(line) for line in lines]
        except TimeoutError:
            raise ClusterError("the API server did not end the watch in time; it hangs") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ClusterError(f"the watch was interrupted: {_reason(error)}") from None
        finally:
            response.close()

    async def pod_addresses(self, labels: str) -> dict[str, str]:
        """Return the address of each running pod with these labels, by name."""
        parameters = {"labelSelector": labels, "limit": str(_PODS_PAGE)}
        url = f"{self._access.url}/api/v1/namespaces/{self._access.namespace}/pods"
        found: dict[str, str] = {}
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                # One more is read, so that a relay says that there are too many.
                while len(found) <= MAX_PODS:
                    page = await self._page(parameters, url, PODS)
                    for pod in page["items"] or ():
                        address = (pod.get("status") or {}).get("podIP")
                        if pod["status"].get("phase") == "Running" and isinstance(address, str):
                            found[str(pod["metadata"]["name"])] = address
                    proceed = page["metadata"].get("continue")
                    if not proceed:
                        break
                    parameters["continue"] = proceed
        except TimeoutError:
            raise ClusterError(f"the API server did not list the pods within {_LIST_SECONDS:.0f} s") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise ClusterError(f"the API server's answer is not a list of pods ({error!s:.100})") from None
        return found

    async def _page(self, parameters: dict[str, str], url: str = "", verb: str = "list") -> dict[str, Any]:
        response = await self._get(parameters, verb, url or self._objects_url())
        try:
            page = json.loads(await _body(response, _MAX_PAGE_BYTES))
        except (aiohttp.ClientError, OSError) as error:
            raise ClusterError(f"the list was interrupted: {_reason(error)}") from None
        except (ValueError, RecursionError):
            raise ClusterError("the API server's answer is not JSON") from None
        finally:
            response.close()
        return dict(page)

    def _objects_url(self) -> str:
        return f"{self._access.url}/{GROUP}/namespaces/{self._access.namespace}/{RESOURCE}"

    async def read_object(self, name: str) -> dict[str, Any] | None:
        """Return the object *name* as the API server has it; None where there is none."""
        try:
            return await self._object("GET", f"{self._objects_url()}/{name}", "get")
        except MissingError:
            return None

    async def write_object(self, value: dict[str, Any]) -> dict[str, Any]:
        """Replace an object at the resource version that *value* has, or create it where it has none; return it.

        Raises:
            ConflictError: the object is at another version, or there is one already.
            ClusterError: anything else.

        """
        metadata = value["metadata"]
        if metadata.get("resourceVersion"):
            return await self._object("PUT", f"{self._objects_url()}/{metadata['name']}", "update", value)
        return await self._object("POST", self._objects_url(), "create", value)

    async def delete_object(self, name: str, version: str) -> None:
        """Delete the object *name* at *version*.

        Raises:
            ConflictError: the object is at another version.
            NotFoundError: there is none.
            ClusterError: anything else.

        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"resourceVersion": version},
        }
        try:
            await self._object("DELETE", f"{self._objects_url()}/{name}", "delete", options)
        except MissingError:
            raise NotFoundError(f"policy {name!r} is not in namespace {self._access.namespace}") from None

    async def read_lease(self, name: str) -> dict[str, Any] | None:
        """Return the Lease *name* of the namespace; None where there is none."""
        try:
            return await self._object("GET", f"{self._leases_url()}/{name}", LEASE)
        except MissingError:
            return None

    async def write_lease(self, value: dict[str, Any]) -> dict[str, Any]:
        """Replace a Lease at the resource version that *value* has, or create it where it has none; return it.

        Raises:
            ConflictError: it is at another version, is there already, or is gone.
            ClusterError: anything else.

        """
        metadata = value["metadata"]
        try:
            if metadata.get("resourceVersion"):
                return await self._object("PUT", f"{self._leases_url()}/{metadata['name']}", LEASE, value)
            return await self._object("POST", self._leases_url(), LEASE, value)
        except MissingError:
            raise ConflictError("the Lease was deleted meanwhile; read it again and retry") from None

    async def patch_status(self, name: str, version: str, status: dict[str, Any]) -> None:
        """Merge *status* into the status of the object *name*, if it is still at resource version *version*.

        Raises:
            NotFoundError: there is no such object.
            ConflictError: it was changed meanwhile, or is another object of that name.
            ClusterError: anything else.

        """
        body = {"metadata": {"resourceVersion": version}, "status": status}
        try:
            await self._object("PATCH", f"{self._objects_url()}/{name}/status", STATUS, body)
        except MissingError:
            raise NotFoundError(f"policy {name!r} is not in namespace {self._access.namespace}") from None

    def _leases_url(self) -> str:
        return f"{self._access.url}/apis/coordination.k8s.io/v1/namespaces/{self._access.namespace}/leases"

    async def _object(self, method: str, url: str, verb: str, body: Any = None) -> dict[str, Any]:
        response = await self._request(
            method, url, {} if body is None else {"fieldManager": _FIELD_MANAGER}, verb, body
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                found = json.loads(await _body(response, _MAX_LINE_BYTES))
        except (aiohttp.ClientError, OSError) as error:
            raise ClusterError(f"the answer broke: {_reason(error)}") from None
        except (ValueError, RecursionError):
            raise ClusterError("the API server's answer is not JSON") from None
        finally:
            response.close()
        if not isinstance(found, dict):
            raise ClusterError("the API server's answer is no object")
        return found

    async def _get(self, parameters: dict[str, str], verb: str, url: str) -> aiohttp.ClientResponse:
        return await self._request("GET", url, parameters, verb)

    async def _request(
        self, method: str, url: str, parameters: dict[str, str], verb: str, body: Any = None
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise ClusterError("the client is closed")
        try:
            headers = self._access.headers()
        except OSError as error:
            raise ClusterError(
                f"the token file {self._access.token_file} cannot be read: {error.strerror}"
            ) from None
        if method == "PATCH":
            headers = {**headers, "Content-Type": "application/merge-patch+json"}
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                # A redirect would take the token elsewhere.
                response = await self._session.request(
                    method, url, params=parameters, headers=headers, json=body, allow_redirects=False
                )
        except TimeoutError:
            raise ClusterError(f"{self._access.url} does not answer within {_ANSWER_SECONDS:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ClusterError(f"{self._access.url} cannot be reached: {_reason(error)}") from None
        if response.status in (HTTPStatus.OK, HTTPStatus.CREATED):
            return response
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                text = await _body(response, _MAX_ERROR_BYTES)
        except (OSError, aiohttp.ClientError, ClusterError):
            # TimeoutError is an OSError.
            text = b""
        finally:
            response.close()
        raise refusal(self._access, response, text, verb)


def _event(line: bytes) -> tuple[str, Any]:
    try:
        event = json.loads(line)
        kind, value = event["type"], event["object"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ClusterError("the API server's watch sent an invalid event", outdated=True) from None
    if kind == "ERROR":
        code = value.get("code") if isinstance(value, dict) else None
        text = value.get("message") if isinstance(value, dict) else ""
        raise ClusterError(f"the watch ended with {code}: {text!s:.200}", outdated=True)
    return str(kind), value


async def _lines(response: aiohttp.ClientResponse, deadline: float) -> AsyncIterator[list[bytes]]:
    """Yield the complete lines of each chunk. No timeout is open while the caller works."""
    rest = b""
    while True:
        async with asyncio.timeout_at(deadline):
            chunk = await response.content.readany()
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            raise ClusterError(
                f"the watch sent a line of more than {_MAX_LINE_BYTES >> 20} MiB", outdated=True
            )
        if lines:
            yield [line for line in lines if line.strip()]


async def _body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) > limit:
            raise ClusterError(f"the API server's answer has more than {limit >> 10} KiB")
    return bytes(found)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    connection = response.connection
    transport = None if connection is None else connection.transport
    found = None if transport is None else transport.get_extra_info("socket")
    if found is None:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        # Linux has them all.
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
