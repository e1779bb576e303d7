"""FeatureMap: what a layer put out, with its figures."""

from torch import Tensor, nn

from tdbg.debuggers import DEBUGGERS
from tdbg.debuggers.base import ForwardDebugger
from tdbg.debuggers.captured_stats import compute_stats, each_tensor


@DEBUGGERS.add
class FeatureMap(ForwardDebugger):
    """The output of a layer, whole.

    Returns ``layer_name``, ``feature_map`` (BCHW for a 2-D convolution; any shape and dtype, as the layer gave it) and
    ``stats``: mean, std (n - 1), min and max of its finite elements, None where there are none, shape; nan_count and
    inf_count if there are any. Of an output with several tensors these are the first one's, and ``others`` has those
    of each other by its path.
    Cost: a copy to the host and three passes.
    """

    name = "feature-map"

    def process_forward(self, module: nn.Module, input: object, output: object) -> dict[str, object]:
        return each_tensor(self.layer_name, output, _describe_tensor)


def _describe_tensor(tensor: Tensor) -> dict[str, object]:
    return {"feature_map": tensor, "stats": compute_stats(tensor)}
