"""Many runs: experiment files and what performs them."""
