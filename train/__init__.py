"""Training: gradient plans, losses, rollouts, environments, the loop, checkpoints and reports."""
