"""The shipped rules in process and in a real Prometheus 3, on the same samples at the same times."""
