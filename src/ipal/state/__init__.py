"""State as a value: copied, flattened to named tensors, restored, and written to files."""
