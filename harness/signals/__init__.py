"""What a job says of itself beyond its steps: who is slow, and whether training is healthy."""
