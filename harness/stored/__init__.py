"""`harness checkpoint`: what people do with stored checkpoints by hand."""

HELP = "List, verify, remove, export and import checkpoints."
