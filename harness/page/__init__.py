"""A run as a page in a browser, live, beside its metrics."""
