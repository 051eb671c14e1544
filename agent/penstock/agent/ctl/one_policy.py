"""The one policy that a command is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.ctl.errors import FailedError
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from penstock.agent.ctl.connection.client import Client


def fetch_policy(client: Client, name: str) -> admin.Policy:
    """Return policy *name*.

    Raises:
        FailedError: the call fails, or the agents of a relay have several policies of that name.

    """
    found = client.call("ListPolicies", admin.ListPoliciesRequest(name=name)).policies
    if len(found) != 1:
        raise FailedError(
            f"the agents of this relay have {len(found)} different policies of the name {name!r}; "
            "'agentctl get policy' lists them, --address names one agent"
        )
    policy: admin.Policy = found[0]
    return policy
