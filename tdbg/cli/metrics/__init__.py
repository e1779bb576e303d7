"""`tdbg metrics`: the numbers of a run."""

from tdbg.core.command_spec import Group, make_loader

HELP = """Show, plot, compare and check the losses, rates and scores of a run.

    `tdbg run` keeps what it sees and what the program logs (W&B, TensorBoard, a trainer of Hugging Face or Lightning,
    torchmetrics, a MetricsTracker) in metrics.jsonl, one per rank. It is read in place, also while the run goes on
    or after it was killed, without torch.

    Examples:
        tdbg metrics show
        tdbg metrics plot tdbg_runs/20261121-031500-train train/loss
    """
NAMES = ("show", "dump", "plot", "compare", "sanity")  # the order of the help page; a file each
COMMAND = Group(HELP, NAMES, make_loader(__name__))
