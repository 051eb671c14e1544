"""The commands; a module is imported when its command runs."""
