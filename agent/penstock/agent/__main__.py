"""``python -m penstock.agent``: the same as ``penstock-agent``."""

from penstock.agent.entry import agent

agent()
