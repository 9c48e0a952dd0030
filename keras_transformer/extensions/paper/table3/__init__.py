"""The paper's Table 3: models that differ from one base, trained row by row."""
