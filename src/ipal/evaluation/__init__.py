"""Scores: from predictions to the accuracy matrix and its metrics."""
