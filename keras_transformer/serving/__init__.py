"""Clients of TF Serving, and a server of one exported model that speaks its API.

`client` asks any such server. `server` is the embedded default, for one model on one
machine; TF Serving serves the same directory where that is not enough.
"""
