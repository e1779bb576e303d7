"""What Hugging Face's Trainer logs: each call of ``log``, before its callbacks see it."""

from collections.abc import Mapping
from types import ModuleType

from tdbg.inject.metrics.taps import Tap, get_argument

PHASES = (("eval_", "val"), ("test_", "test"))


def arrive(module: ModuleType, tap: Tap) -> None:
    """The program has imported the Trainer's callbacks."""

    def record_logs(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        state, data = get_argument(args, kwargs, 2, "state"), get_argument(args, kwargs, 4, "logs")
        if not isinstance(data, Mapping):
            return
        step, epoch = getattr(state, "global_step", None), data.get("epoch", getattr(state, "epoch", None))
        tap.feed.record_logged(
            "hf",
            {name: value for name, value in data.items() if name != "epoch"},
            own_step=step if isinstance(step, int) else None,
            epoch=epoch if isinstance(epoch, int | float) else None,
            phase=_infer_phase(data),
        )

    tap.add_listeners(module.CallbackHandler, "on_log", before=record_logs)


def _infer_phase(data: Mapping[str, object]) -> str:
    """Evaluation's values bear its name in front."""
    names = [str(name) for name in data if name not in ("epoch", "step")]
    for begin, phase in PHASES:
        if names and all(name.startswith(begin) for name in names):
            return phase
    return "train"
