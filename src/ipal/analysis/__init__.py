"""A second look at runs and models: audit, drift."""
