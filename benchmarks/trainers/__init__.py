"""Whole trainings by others, for benchmarks/quality_over_time.py."""
