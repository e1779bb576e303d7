"""`tdbg metrics`: the numbers of a run."""

from typing import Any

import typer

from tdbg.asked import Asked
from tdbg.cli import options
from tdbg.metrics.commands import NAMES, Subcommand, escape_what_cannot_be_shown, load

app = options.group(
    """Show, plot, compare and check the numbers of a run: losses, rates, scores.

    `tdbg run` keeps what it sees and what the program logs (W&B, TensorBoard, a trainer of Hugging Face or Lightning,
    torchmetrics, a MetricsTracker) in metrics.jsonl, a file a rank. It is read where it lies, also while the run goes on
    or after it was killed, without torch.

    Examples:
        tdbg metrics show
        tdbg metrics plot tdbg_runs/20261121-031500-train train/loss
    """
)


def _add(name: str, found: Subcommand) -> None:
    def command(**given: Any) -> int:
        question: Asked = found.Question(**{key: value for key, value in given.items() if value is not None})
        escape_what_cannot_be_shown()
        return found.answer(question)

    metavar, text = found.ARGUMENTS
    command.__doc__ = found.HELP
    options.declare(command, found.Question, found.OPTIONS, typer.Argument(metavar=metavar, help=text))
    app.command(name)(command)


for _name in NAMES:
    _add(_name, load(_name))
