"""Graphs as two tables: one row a node, one row an edge."""
