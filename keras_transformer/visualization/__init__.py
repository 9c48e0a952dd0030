"""What a model does, in numbers and in pictures: attention, its heads, positions, embeddings."""
