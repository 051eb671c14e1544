"""The admin service: what ``agentctl`` asks."""

from __future__ import annotations

from penstock.agent.admin.authorization import AccessInterceptor
from penstock.agent.admin.service import AdminService
from penstock.agent.admin.support.context import AgentContext, StatusSource

__all__ = ["AccessInterceptor", "AdminService", "AgentContext", "StatusSource"]
