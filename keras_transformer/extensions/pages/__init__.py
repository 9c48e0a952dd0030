"""Pictures and pages of attention, heads, positions and embeddings, and the playground."""
