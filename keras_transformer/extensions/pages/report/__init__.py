"""HTML pages in a single file: the reports of training runs and of prepared data."""
