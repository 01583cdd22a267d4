"""One small file per kind of fault."""
