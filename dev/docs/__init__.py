"""Documents that are made from what they describe.

Owns: the chart's README and schema descriptions, its dashboards, the reference of resources,
conditions and metrics. Nothing else imports it.
"""
