"""The encoder demo: a real encoder and a real language model; transfers that wait and break."""
