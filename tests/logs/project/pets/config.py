"""The program's config: yacs, with a debug section."""

from yacs.config import CfgNode as CN

_C = CN()
_C.LR = 0.05
_C.DEBUG = CN()
_C.DEBUG.GRADIENTS = False
_C.DEBUG.DATALOADER = False
_C.DEBUG.SCHEDULING = False
_C.DEBUG.LR = False
_C.DEBUG.VALIDATION = False
_C.DEBUG.MODEL_BUILD = False
_C.DEBUG.OWN_THING = False
_C.DEBUG.LOSS = CN()
_C.DEBUG.LOSS.NULL_MASKING = False
_C.DEBUG.LOSS.CLASS_WEIGHTING = False


def get_config(opts):
    cfg = _C.clone()
    cfg.merge_from_list(opts)
    cfg.freeze()
    return cfg
