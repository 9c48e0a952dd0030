"""Training steps on demand: processes that `train_step.py` lets work one at a time.

`protocol.py` is how they are spoken to, `cost.py` what a step costs on paper;
both need only NumPy, so that a stepper runs in an environment without the package.
"""
