"""Decoding on demand: processes that `decode.py` lets work one at a time.

Each decoder module is such a process, spoken to as `steppers.protocol` says; what is asked
of it stands in `protocol.py`. A peer's needs the peer and NumPy, not the package.
"""
