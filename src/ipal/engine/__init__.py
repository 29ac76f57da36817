"""The training loop, the state it passes on, and the ways to execute its steps."""
