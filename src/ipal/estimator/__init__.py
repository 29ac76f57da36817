"""Fitted models, the scikit-learn style face of a method, and what is done with a fitted model."""
