"""Topics: the pure cores of a topic, its subscriptions and their dispatch.

Owns: positions and ordinals, cursors, dispatch, registries of producers and subscriptions. Imports:
errors. Pure: plain values in, plain values out. Start at `topic.Topic`.
"""
