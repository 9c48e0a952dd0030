"""Baselines for the Transformer, with the same data, training and search (paper, Table 2).

Import `architectures` to load their runs.
"""
