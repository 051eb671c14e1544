"""The state directory: its owner, its disk budget, what was set aside."""
