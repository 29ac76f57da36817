"""Graphs, datasets and streams of tasks. NumPy only."""
