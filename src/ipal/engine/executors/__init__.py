"""Ways to execute the steps of a task: as CUDA graphs, and of several runs as one."""
