"""From the entries of one request to its spans. Pure; knows no journal and no backend."""
