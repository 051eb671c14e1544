"""One command a module, imported when it is run."""
