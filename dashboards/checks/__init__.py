"""What can be known of the dashboards without a Grafana server: layer by layer, each in a module of its own."""
