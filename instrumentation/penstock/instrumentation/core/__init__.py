"""What everything on the engine side stands on; imports nothing of ours."""
