"""The base of the engine side: settings, session, guard, counters. Imports no other package of ours."""

from __future__ import annotations

from penstock.instrumentation.core import settings
from penstock.instrumentation.core.engine_log import LogLimit, logger
from penstock.instrumentation.core.fork import (
    READER_THREAD,
    STREAMS_THREAD,
    grpc_objects,
    note_grpc_object,
    wait_for_grpc_to_end,
)
from penstock.instrumentation.core.guard import (
    OTHER,
    DropCounter,
    count_entries,
    guard,
    guarded,
    is_end_of_process,
)
from penstock.instrumentation.core.session import Identity, Session
from penstock.instrumentation.core.settings import Settings
from penstock.proto import constants
from penstock.proto.constants import COMPONENT_SCHEDULER, ROLES

__all__ = [
    "COMPONENT_SCHEDULER",
    "OTHER",
    "READER_THREAD",
    "ROLES",
    "STREAMS_THREAD",
    "DropCounter",
    "Identity",
    "LogLimit",
    "Session",
    "Settings",
    "constants",
    "count_entries",
    "grpc_objects",
    "guard",
    "guarded",
    "is_end_of_process",
    "logger",
    "note_grpc_object",
    "settings",
    "wait_for_grpc_to_end",
]
