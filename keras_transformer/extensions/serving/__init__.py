"""A server of one model with TF Serving's REST API, for one machine, and its client.

TF Serving serves the same directory where that is not enough.
"""
