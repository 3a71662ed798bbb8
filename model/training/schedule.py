"""The reference's learning rate: linear warm-up, then linear decay counted from step 0.

In:  a step, counted from 0, and the recipe.
Out: the rate for that step.

At step 0 it is 0, and at the end of the warm-up it drops from the peak to peak × (1 - warmup/N)
(reference: optimization.py:32-54). This is not Hugging Face's schedule.
"""

from model.config import OptimizerConfig


def learning_rate(step: int, *, steps: int, optimizer: OptimizerConfig) -> float:
    """Rate of `step` out of `steps`."""
    if step < optimizer.warmup_steps:
        return optimizer.learning_rate * step / optimizer.warmup_steps
    return optimizer.learning_rate * max(0.0, 1.0 - step / steps)
