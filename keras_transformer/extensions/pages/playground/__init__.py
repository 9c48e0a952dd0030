"""A page to try models: translations with scores, alignment and attention."""
