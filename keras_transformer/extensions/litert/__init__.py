"""Exports a run as a LiteRT model, one file for phones."""
