"""A page to try models on: what they translate, how sure they are, and what they attend to."""
