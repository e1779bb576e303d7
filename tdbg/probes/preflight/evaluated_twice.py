"""The batch in eval mode, twice with the same random numbers and once with others."""

from tdbg.core.guard import Guard
from tdbg.core.observations.preflight import EvaluatedTwice
from tdbg.probes.preflight.forward_trials import ForwardTrials, are_equal
from tdbg.probes.validation.random_draws import RandomDraws


def try_evaluated_twice(trials: ForwardTrials, guard: Guard) -> EvaluatedTwice:
    """Whether the outputs are equal, and which dropout function drew where they are not."""
    first = trials.run_forward()
    if not are_equal(first, trials.run_forward()):
        return EvaluatedTwice(repeats=False)
    if are_equal(first, trials.run_forward(other_numbers=True)):
        return EvaluatedTwice()
    draws = RandomDraws(guard)
    draws.drew = 1  # it looks for the function from the first call that drew on
    draws.begin_call()
    try:
        trials.run_forward()
    finally:
        draws.end_watch()
    return EvaluatedTwice(drew=True, drawn_by=draws.function or None, drawn_at=draws.line or None)
