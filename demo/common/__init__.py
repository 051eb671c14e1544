"""What all three demos use, and the engine tests: servers, clients, links, the agent."""
