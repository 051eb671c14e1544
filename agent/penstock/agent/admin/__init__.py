"""The admin service: what ``agentctl`` asks."""

from __future__ import annotations

from penstock.agent.admin.access import AccessInterceptor
from penstock.agent.admin.context import AgentContext, StatusSource
from penstock.agent.admin.service import AdminService

__all__ = ["AccessInterceptor", "AdminService", "AgentContext", "StatusSource"]
