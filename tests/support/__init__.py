"""What tests, the demo and the benchmarks share: a load, real servers, and the agent as a black box around
them.

Nothing here imports the agent: it is started as a command and read through its HTTP interface and its
files, as a user would.
"""
