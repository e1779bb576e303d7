"""`tdbg inspect-pages ls`: what was captured."""

from tdbg.asked import Asked, Options

HELP = """List what was captured: layers, shapes, datapoints, bytes.

    Examples:
        tdbg inspect-pages tdbg_runs/20261121-031500-train
        tdbg inspect-pages ls --datapoints
    """
ARGUMENTS = ("PATH", "A run, a rank's folder, a folder of pages, or one page; the newest run if left out.")
OPTIONS: Options = {
    "datapoints": (("--datapoints",), "", "A line a datapoint instead of a line a layer."),
    "json": (("--json",), "", "Print one JSON document."),
}


class Question(Asked):
    """What `ls` can be asked."""

    datapoints: bool = False
    json: bool = False


def answer(question: Question) -> int:
    """Print the list; 1 if there is nothing in it."""
    from tdbg.pages.places import opened

    pages = opened(question.paths)
    layers = pages.layers()
    for layer in layers:
        print(layer.path, ",".join(layer.dtypes), layer.datapoints, layer.nbytes, sep="\t")
    return 0 if layers else 1
