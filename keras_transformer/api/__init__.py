"""The Python library: prepare, train, load, translate and export in a few lines."""
