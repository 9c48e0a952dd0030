"""HTML pages in a single file: the report of a training run, and that of prepared data."""
