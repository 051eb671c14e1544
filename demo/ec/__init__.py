"""The encoder demo: an encoder and a language model; transfers that wait and fail."""
