"""The engine of a rank: what happens in a training step, who is called at each point of it, and what that may cost."""
