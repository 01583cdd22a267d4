"""What a job of a given size will reach, and what would help it most."""
