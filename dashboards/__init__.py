"""Dashboards for Grafana and rules for Prometheus, with what checks them. Reads names from `harness.metrics` alone."""
