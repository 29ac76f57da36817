"""What is computed: encoders, heads, losses, prototypes."""
