"""``python -m penstock.agent``: the same as ``penstock-agent``."""

from penstock.agent.main import main

main()
