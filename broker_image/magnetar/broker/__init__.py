"""The broker process: the I/O around the pure cores.

Owns: what drives the pure cores. Start at `process`, then `incarnation`. Imports: every other
package but the command line, which imports this one. Coordinators import its `connections` and
`process`.
"""
