"""How the agent's answers grow with engines, peers, journal and uptime: ``make scale``."""
