"""`harness gpu-acceptance`: whether all that is promised holds on this node and its GPUs."""
