"""What records of the log make of a topic's transactions, live and in recovery.

Owns: the modules below; the package itself exports nothing.
"""
