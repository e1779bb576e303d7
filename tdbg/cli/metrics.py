"""`tdbg metrics`: the numbers of a run."""

from tdbg.cli import options
from tdbg.core.asked import load
from tdbg.metrics import commands

app = options.group(
    """Show, plot, compare and check the losses, rates and scores of a run.

    `tdbg run` keeps what it sees and what the program logs (W&B, TensorBoard, a trainer of Hugging Face or Lightning,
    torchmetrics, a MetricsTracker) in metrics.jsonl, a file a rank. It is read where it lies, also while the run goes on
    or after it was killed, without torch.

    Examples:
        tdbg metrics show
        tdbg metrics plot tdbg_runs/20261121-031500-train train/loss
    """
)

for _name in commands.NAMES:
    options.add(app, _name, load(commands.__name__, _name))
