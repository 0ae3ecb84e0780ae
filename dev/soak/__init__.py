"""`make soak`: a cluster that is hurt at random while clients of several kinds use it, and the
proof that nothing they were promised was broken.

Owns: nothing itself: `history` records and judges (pure), `traffic` publishes and consumes,
`life_traffic` adds chunks, delays, dead letters and a time to live, `nemesis` hurts, `report`
prints, `__main__` puts them together. `make soak-txn` is the same for transactions: `transactions`,
`transaction_traffic`, `transaction_nemesis`, judged by dev.histories. `make soak-hostile` is an
ordinary workload (`paced`) with and without a hostile client (`hostile_peer`, `attacks`) and clocks
that jump (`clock_jumps`, `skewed_main`): `hostile` runs it, `hostile_report` prints. `make attack`
is the same workload on one server with TLS and tokens beside attacks on its resources, one after
another: `attack` runs it, `probes` asks what ordinary clients ask.
"""
