"""One file a paper: frozen settings and pure functions. `registry.py` knows them by name."""
