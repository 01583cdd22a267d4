"""`harness doctor`: whether a machine can hold a run, before there is one."""
