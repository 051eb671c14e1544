"""The way back, for KV and encoder outputs alike: taint, rewind, client error."""
