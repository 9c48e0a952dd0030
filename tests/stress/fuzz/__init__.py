"""Hostile requests to an exported model, and what has to be true of the answers.

Nothing here knows the package: the model is a SavedModel in a process of its own.
"""
