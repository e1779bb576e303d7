"""What a batch says its samples are called."""

from collections.abc import Mapping

from torch import Tensor

MOST = 1 << 16


def batch_ids(batch: object) -> list[int | str]:
    """The ids in ``meta_info['idx']`` of a batch: of a number, a text, a list or a tensor; none if there are none."""
    found = batch.get("meta_info") if isinstance(batch, Mapping) else None
    if isinstance(found, Mapping):
        found = found.get("idx")
    elif (
        isinstance(found, list | tuple) and found and all(isinstance(item, Mapping) and "idx" in item for item in found)
    ):
        found = [item["idx"] for item in found]
    else:
        found = None
    if found is None:
        return []
    if isinstance(found, Tensor):
        found = found.reshape(-1).tolist() if found.numel() <= MOST else []
    elif not isinstance(found, list | tuple):
        found = found.reshape(-1).tolist() if hasattr(found, "reshape") else [found]
    plain = [item.item() if hasattr(item, "item") else item for item in found[:MOST]]
    return plain if all(isinstance(item, int | str) and not isinstance(item, bool) for item in plain) else []
