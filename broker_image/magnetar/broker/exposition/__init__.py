"""Metrics of single topics.

Owns: nothing itself; `sheet` has the values of one scrape and their text, `topics` the metrics and
how they are read, `scrapes` the answers.
"""
