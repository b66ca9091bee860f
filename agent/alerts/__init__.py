"""Alerts: Prometheus rule files judged in process.

In: rule files, a profile of thresholds, and the series of one target. Out: for every rule its state as Prometheus has
it (inactive, pending, firing), beside it what could not be judged and why, and the changes that people are told of.
"""
