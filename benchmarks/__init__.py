"""One file per claim: it runs both sides in turn and prints the ratio."""
