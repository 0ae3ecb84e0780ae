"""Analysis of load.

Owns: forecasts, split points, merges, hot topics and compaction candidates, as functions of measured
load. Imports: numpy, magnetar.balance. Pure: no I/O, neither time nor chance.
"""
