"""Balance: the pure rules by which load decides what a broker serves.

Owns: load reports, placement, shedding, splits and merges by load, the planner, and the record of
every decision. Imports: errors, metadata.codec, names, ownership.splits. Pure: time and seeds are
inputs.
"""
