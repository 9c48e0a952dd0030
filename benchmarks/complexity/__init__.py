"""The layers of the paper's table 1, measured and counted.

`layers.py` has them, and what the paper says of each; `graph.py` and `paths.py` count,
`measuring.py` and `memory.py` measure, `comparison.py` does both for layers of one size.
`results.py` holds and fits what was found, which `tables.py` and `drawing.py` show.
"""
