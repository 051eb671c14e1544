"""Who emits: live sources, their last snapshots, and the account of their entries. Pure."""
