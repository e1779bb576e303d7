"""What the program writes with ``SummaryWriter``, torch's own or tensorboardX's."""

from collections.abc import Mapping
from types import ModuleType

from tdbg.inject.metrics.taps import Tap, argument


def arrive(module: ModuleType, tap: Tap) -> None:
    """The program has imported a SummaryWriter."""

    def scalar(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        tag, value = argument(args, kwargs, 1, "tag"), argument(args, kwargs, 2, "scalar_value")
        if isinstance(tag, str) and not isinstance(value, str | Mapping):  # words name a blob of Caffe2
            _heard({tag: value}, argument(args, kwargs, 3, "global_step"), tap)

    def scalars(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        tag, values = argument(args, kwargs, 1, "main_tag"), argument(args, kwargs, 2, "tag_scalar_dict")
        if isinstance(values, Mapping):
            named = {f"{tag}/{name}": value for name, value in values.items() if not isinstance(value, str)}
            _heard(named, argument(args, kwargs, 3, "global_step"), tap)

    tap.hear(module.SummaryWriter, "add_scalar", before=scalar)
    tap.hear(module.SummaryWriter, "add_scalars", before=scalars)


def _heard(data: dict[str, object], step: object, tap: Tap) -> None:
    own_step = int(step) if isinstance(step, int) else None
    tap.feed.logged("tensorboard", data, own_step=own_step, gather=True)
