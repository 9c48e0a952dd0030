"""MarianMT directories of Hugging Face, which the library `transformers` loads."""
