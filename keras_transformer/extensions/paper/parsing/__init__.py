"""Constituency parsing by the same model (section 6.3): trees as sequences of symbols."""
