"""What the program writes with ``SummaryWriter``, torch's own or tensorboardX's."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tdbg.core.sink_files import TENSORBOARD, announce_own_run
from tdbg.inject.metrics.taps import Tap, get_argument

if TYPE_CHECKING:
    from tdbg.inject.metrics import RowFeed


def arrive(module: ModuleType, tap: Tap) -> None:
    """The program has imported a SummaryWriter."""

    def record_scalar(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        tag, value = get_argument(args, kwargs, 1, "tag"), get_argument(args, kwargs, 2, "scalar_value")
        if isinstance(tag, str) and not isinstance(value, str | Mapping):  # words name a blob of Caffe2
            _record_values({tag: value}, get_argument(args, kwargs, 3, "global_step"), tap)

    def record_scalars(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        tag, values = get_argument(args, kwargs, 1, "main_tag"), get_argument(args, kwargs, 2, "tag_scalar_dict")
        if isinstance(values, Mapping):
            named = {f"{tag}/{name}": value for name, value in values.items() if not isinstance(value, str)}
            _record_values(named, get_argument(args, kwargs, 3, "global_step"), tap)

    if TENSORBOARD in tap.feed.me.settings.to:
        tap.add_listeners(
            module.SummaryWriter, "__init__", after=lambda args, kwargs, result: _announce_folder(args[0], tap.feed)
        )
    tap.add_listeners(module.SummaryWriter, "add_scalar", before=record_scalar)
    tap.add_listeners(module.SummaryWriter, "add_scalars", before=record_scalars)


def _record_values(data: dict[str, object], step: object, tap: Tap) -> None:
    own_step = int(step) if isinstance(step, int) else None
    tap.feed.record_logged("tensorboard", data, own_step=own_step, gather=True)


def _announce_folder(writer: object, feed: "RowFeed") -> None:
    """Note in the run directory where the program keeps its events; the first folder of rank 0 counts.

    A URL is not noted: it may hold a secret, and tdbg writes to folders alone.
    """
    folder = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)
    if not isinstance(folder, str | Path) or "://" in str(folder):
        return
    place = str(Path(folder).absolute())

    def announce_as_rank() -> None:
        if feed.me.rank == 0:
            announce_own_run(feed.me.run_dir, TENSORBOARD, {"folder": place, "host": feed.me.host}, id(writer))

    feed.monitor.when_rank(announce_as_rank)
