"""PromQL to the letter of Prometheus 3, on promql-parser's tree."""
