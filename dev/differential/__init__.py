"""Apache Pulsar and Magnetar under the same operations: what differs.

Owns: the modules below; `python -m dev.differential` runs generated scenarios against both. The
package itself exports nothing.
"""
