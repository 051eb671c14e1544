"""One area a module, each with measure(run) -> Section."""
