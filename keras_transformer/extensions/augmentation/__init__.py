"""Changes of training pairs, which teach a model what its corpus does not contain."""
