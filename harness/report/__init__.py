"""From a timeline to what people read."""
