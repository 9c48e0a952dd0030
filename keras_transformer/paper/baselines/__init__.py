"""What the Transformer is compared with, on the same data, by the same training and search."""
