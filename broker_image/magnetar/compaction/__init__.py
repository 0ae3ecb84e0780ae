"""Topic compaction: the latest message per key.

Owns: what compaction sees in an entry, which messages survive, how an entry looks in the view, and
the commit of a new view. Imports: wire, storage formats, metadata. Brokers and Spark jobs compact by
this code; where the input comes from is theirs. All of it is pure but `commit`.
"""
