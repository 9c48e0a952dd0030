"""A server of one exported model that speaks TF Serving's API, for one machine.

TF Serving serves the same directory where that is not enough.
"""
