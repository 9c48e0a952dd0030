"""The layers of the paper's table 1, measured and counted.

`layers.py` makes the layers and has the paper's claims. `graph.py` and `paths.py` count,
`measuring.py` measures, and `results.py` fits exponents and prints tables.
"""
