"""The numbers of a run: state, schedule, names and sinks, four small things that do not know each other.

What a training process imports from here needs the standard library alone.
"""
