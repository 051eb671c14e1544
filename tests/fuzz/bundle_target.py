"""All that the file of a bundle goes through: opened, asked as agentctl asks it, and shown."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
import zipfile
import zlib
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.bundle import JOURNAL, MANIFEST, POLICIES, STATE
from penstock.agent.errors import PenstockError
from penstock.agent.evidence.served import BundleServer
from penstock.agent.journal.database.stored_rows import pack
from penstock.agent.page.wire import AdminCalls, AnswerError
from penstock.agent.views.events import event_rows
from penstock.agent.views.text import printable
from penstock.proto.v1 import admin_pb2 as admin

from tests.fuzz.answers import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from google.protobuf.message import Message
    from penstock.proto.v1.admin_pb2_grpc import AdminServicer

    Files = dict[str, bytes]

RECORDED: Final = Path(__file__).parents[1] / "golden/incidents/stuck-load.bundle"
_QUESTIONS: Final[dict[str, Any]] = {
    "GetStatus": admin.GetStatusRequest(),
    "ListEngines": admin.ListEnginesRequest(),
    "ListPeers": admin.ListPeersRequest(most_peers=3, most_engines=2),
    "ListPairs": admin.ListPairsRequest(),
    "ListRequests": admin.ListRequestsRequest(),
    "ListHolders": admin.ListHoldersRequest(),
    "ListSuspects": admin.ListSuspectsRequest(),
    "ListEvents": admin.ListEventsRequest(),
    "ListPolicies": admin.ListPoliciesRequest(),
    "ListAudit": admin.ListAuditRequest(),
    "ListQuarantines": admin.ListQuarantinesRequest(),
    "ListDrills": admin.ListDrillsRequest(),
    "ListPolicyRollouts": admin.ListPolicyRolloutsRequest(),
    "Diagnose": admin.DiagnoseRequest(),
    "GetBill": admin.GetBillRequest(),
}
# Each is asked for twice.
_REQUESTS: Final = 2


def recorded() -> Files:
    """Return the files of a small bundle."""
    with zipfile.ZipFile(RECORDED) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _execute(files: Files, name: str, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.deserialize(files[name])
        database.execute(statement, values)
        files[name] = database.serialize()


def _state(files: Files, body: bytes) -> None:
    files[STATE] = body


def _manifest(files: Files, body: bytes) -> None:
    files[MANIFEST] = body


def _batch(files: Files, body: bytes) -> None:
    _execute(files, JOURNAL, "UPDATE batches SET body = ?, packed = ?", *pack(body))


def _metrics(files: Files, body: bytes) -> None:
    _execute(files, JOURNAL, "UPDATE folds SET body = ?", zlib.compress(body, 1))


def _policy(files: Files, body: bytes) -> None:
    # A text that may not be UTF-8.
    text = "CAST(? AS TEXT)"
    _execute(files, POLICIES, f"INSERT INTO policy VALUES ('p', 1, {text}, '', '', 1)", body)
    _execute(
        files,
        POLICIES,
        f"INSERT INTO audit VALUES (1, 1, '', 'apply', 'p', '', 0, 1, {text}, {text})",
        body,
        body,
    )


KINDS: Final[tuple[Callable[[Files, bytes], None], ...]] = (_state, _manifest, _batch, _metrics, _policy)
"""What the first byte says that the others are; one more is the whole file."""


def write(path: Path, kind: int, body: bytes) -> None:
    """Write a bundle in which *body* stands for one part, and the manifest fits to its files."""
    if kind == len(KINDS):
        path.write_bytes(body)
        return
    files = recorded()
    KINDS[kind](files, body)
    text = files[MANIFEST]
    if KINDS[kind] is not _manifest:
        listed = [
            {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
            if name != MANIFEST
        ]
        text = json.dumps(json.loads(text) | {"files": listed}).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (files | {MANIFEST: text}).items():
            archive.writestr(name, content)


def take(body: bytes) -> bool:
    """Open a bundle and ask it; returns False if it is refused."""
    if not body:
        return False
    with tempfile.TemporaryDirectory(prefix="ps-fuzz-") as directory:
        path = Path(directory) / "b.bundle"
        write(path, body[0] % (len(KINDS) + 1), body[1:])
        try:
            server = BundleServer(path)
        except PenstockError as error:
            printable(str(error)).encode()
            return False
        with closing(server):
            for message in server.add(_asked):
                shown(message)
                if isinstance(message, admin.ListEventsResponse):
                    event_rows(message.events, server.now)
    return True


async def _asked(service: AdminServicer, _: AsyncExitStack) -> list[Message]:
    """Return the answers to all questions; a refusal is a sentence."""
    calls, found = AdminCalls(service), dict[str, Any]()
    for method, request in _QUESTIONS.items():
        await _ask(calls, method, request, found)
    listed = [*found.get("ListEvents", admin.ListEventsResponse()).events]
    names = dict.fromkeys(each.event.request_id for each in listed if each.event.request_id)
    for name in islice(names, _REQUESTS):
        for method in ("GetTrace", "Explain"):
            await _ask(calls, method, admin.GetTraceRequest(request_id=name), found)
    for engine in found.get("ListEngines", admin.ListEnginesResponse()).engines:
        await _ask(calls, "GetEffectivePolicy", admin.GetEffectivePolicyRequest(key=engine.key), found)
    return [*found.values()]


async def _ask(calls: AdminCalls, method: str, request: Message, found: dict[str, Any]) -> None:
    try:
        found[method] = await calls.call(method, request, 60.0)
    except AnswerError as error:
        str(error).encode()
