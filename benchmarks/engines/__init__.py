"""Engines that are compared, one module each; `protocol.py` runs them in separate processes.

A module needs the engine, NumPy and the modules here that use nothing else. Only
`keras_engine.py` imports the package.
"""
