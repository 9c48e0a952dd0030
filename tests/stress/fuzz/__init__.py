"""Malformed requests to an exported model, and checks of the answers.

Nothing here uses the package: the model is a SavedModel.
"""
