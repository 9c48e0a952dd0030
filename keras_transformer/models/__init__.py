"""The Transformer, the protocol of encoder-decoder models, and losses and metrics for Keras."""
