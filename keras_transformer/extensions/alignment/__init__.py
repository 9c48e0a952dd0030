"""Which words and tokens translate each other, and a head of attention that learns it."""
