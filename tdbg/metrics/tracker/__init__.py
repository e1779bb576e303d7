"""The state of a run's metrics: values, phases, best epochs, and how all of it is saved and merged."""
