"""How tensors are computed: sparse products, mini-batches, GPUs."""
