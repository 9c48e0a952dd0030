"""Engines that are compared, one module each; `protocol.py` runs them in separate processes.

A module needs the engine, NumPy and the modules here that use nothing else. `keras_engine.py`
imports the package, and so do tasks that open an export.
"""
