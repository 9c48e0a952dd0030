"""Models that start up: processes that `startup.py` times from their beginning.

Each module is such a process, which loads one exported model, translates one sentence
twice and ends; `protocol.py` says how. A peer's needs the peer alone, not the package.
"""
