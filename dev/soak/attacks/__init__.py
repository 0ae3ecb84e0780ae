"""What a hostile client does to a cluster.

Owns: nothing itself. `raw` is a connection without manners; the other modules hold attacks by
subject, `catalogue` lists them all. Imports: magnetar.wire (to build frames), never the server.
Invariants: traffic goes to the loopback only; every attack ends by itself and is bounded in bytes,
requests and connections; the same seed makes the same frames.
"""
