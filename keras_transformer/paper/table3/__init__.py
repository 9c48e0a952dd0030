"""Tables of models that differ from one base, trained row by row: the paper's Table 3."""
