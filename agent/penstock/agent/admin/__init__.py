"""The admin service: what ``agentctl`` asks."""

from __future__ import annotations

from penstock.agent.admin.context import AgentContext, StatusSource
from penstock.agent.admin.service import AdminService

__all__ = ["AdminService", "AgentContext", "StatusSource"]
