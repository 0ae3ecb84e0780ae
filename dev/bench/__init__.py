"""Figures of the publish path: `python -m dev.bench`.

Owns: the load, the raw disk as denominator, the server's cost and the report. Imports: the standard
library, dev.server_process, dev.kube (cache directory, progress lines). Micro-benchmarks of single
layers lie beside them and run on their own. Invariants: timing never fails anything; only processes
started here are stopped, by their own handle; everything listens on the loopback.
"""
