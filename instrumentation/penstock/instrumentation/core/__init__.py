"""What everything on the engine side stands on; imports nothing of ours."""

from __future__ import annotations

from penstock.instrumentation.core import constants, settings
from penstock.instrumentation.core.constants import COMPONENT_SCHEDULER, ROLES
from penstock.instrumentation.core.drop_counter import OTHER, DropCounter, entries_in
from penstock.instrumentation.core.fork import wait_for_grpc_to_end
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.core.guarded import guarded
from penstock.instrumentation.core.identity import PRECEDENCE, Identity, new_epoch, new_secret
from penstock.instrumentation.core.log_limit import LogLimit
from penstock.instrumentation.core.settings import Settings

__all__ = [
    "COMPONENT_SCHEDULER",
    "OTHER",
    "PRECEDENCE",
    "ROLES",
    "DropCounter",
    "Identity",
    "LogLimit",
    "Settings",
    "constants",
    "entries_in",
    "guard",
    "guarded",
    "new_epoch",
    "new_secret",
    "settings",
    "wait_for_grpc_to_end",
]
