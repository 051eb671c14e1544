"""The rules, pure: policy values, decisions, recompute budget, circuit breakers, deadlines, drills."""
