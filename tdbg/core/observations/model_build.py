"""What the probe `model-build` sees."""

from tdbg.core.events import Number, doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count

Shapes = dict[str, list[int]]


class ModuleTree(Observed):
    """A root module at its first call, and everything below it."""

    PROBE = "model-build"
    PART = "TREE"
    NUMBERED = True

    root: str = doc("class of the root", "")
    modules: int = doc("number of modules, the root included", 0)
    depth: int = doc("levels of the tree below the root", 0)
    parameters: int = doc("number of elements of all parameters, shared ones counted once", 0)
    trainable: int = doc("number of elements that require a gradient", 0)
    buffers: int = doc("elements of all buffers", 0)
    children: list[str] = doc("the root's children, at most eight", factory=list)
    child_parameters: list[int] = doc("number of parameter elements of each child", factory=list)
    built_at: str = doc("file:line where the root was built", "")
    build_ms: float = doc("time from the first to the last registration below the root", 0.0)
    shared: list[str] = doc("parameters under two names, at most eight: 'a = b'", factory=list)
    lazy: list[str] = doc("parameters without a shape yet, at most eight", factory=list)

    drawn: tuple[str, ...] = ()  # the tree, line by line: for the log alone

    def text(self) -> str:
        """Size and place of the root, and the tree below it."""
        head = f"{self.root}: {format_count(self.modules, 'module')}, {format_count(self.parameters, 'parameter')} ({self.trainable:,} trainable)"
        head += f", built at {self.built_at} in {self.build_ms:.1f} ms" if self.built_at else ""
        head += "".join(f"; shared: {pair}" for pair in self.shared[:3])
        return "\n".join([head, *self.drawn])


class InitialWeights(Observed):
    """The weights of a root before the first update; each list of figures has an entry a weight."""

    PROBE = "model-build"
    PART = "INIT"
    NUMBERED = True
    EVIDENCE = Evidence.FROM_WEIGHTS

    names: list[str] = doc("weights that were looked at, at most 512", factory=list)
    mean: list[Number | None] = doc("mean of a sample of each", factory=list)
    std: list[Number | None] = doc("standard deviation of the sample", factory=list)
    zero_share: list[Number | None] = doc("share of the sample that is zero", factory=list)
    not_finite: list[str] = doc("weights with NaN or Inf, at most eight", factory=list)
    too_large: list[str] = doc(
        "weights with a standard deviation of at least MODEL_BUILD.init_ratio times He's, at most eight", factory=list
    )
    ratios: list[Number | None] = doc("standard deviation of each of these, divided by He's", factory=list)
    too_small: list[str] = doc(
        "weights whose standard deviation is as many times below He's (may be intentional), at most eight", factory=list
    )
    zero: list[str] = doc("matrices that are all zero (may be intentional), at most eight", factory=list)

    described: str = ""  # the weights in words: for the log alone

    @property
    def level(self) -> str:
        """W where a weight is not finite, or too large."""
        return "W" if self.not_finite or self.too_large else "D"

    def text(self) -> str:
        """How many are not finite, too large, small or zero, and which."""
        return f"{format_count(len(self.names), 'weight')} before the first update: {self.described}"


class UngradedParameters(Observed):
    """Trainable parameters that had no gradient in the first updates."""

    PROBE = "model-build"
    PART = "UNUSED"
    LEVEL = "W"

    unused: list[str] = doc("trainable parameters without any gradient, at most eight", factory=list)
    unused_count: int | None = doc("number of these parameters")
    updates: int = doc("number of updates that were checked", 0)

    watched: int = 0  # parameters that were looked at: for the line alone

    @property
    def parameter_count(self) -> int:
        """How many there are."""
        return self.unused_count if self.unused_count is not None else len(self.unused)

    def text(self) -> str:
        """How many of how many, and their names."""
        return (
            f"{self.parameter_count} of {format_count(self.watched, 'trainable parameter')} had no gradient in {format_count(self.updates, 'update')}:"
            f" {', '.join(self.unused)}"
        )


class StuckAtZero(Observed):
    """Weights that began at zero, are zero still, and whose gradient is zero."""

    PROBE = "model-build"
    PART = "STUCK"
    LEVEL = "W"

    stuck: list[str] = doc("weights that are zero, with a gradient of zero, at most eight", factory=list)
    updates: int = doc("number of updates that were checked", 0)

    def text(self) -> str:
        """After how many updates, and which."""
        return f"zero since it was built, and the gradient is still zero after {format_count(self.updates, 'update')}: {', '.join(self.stuck)}"


class BrokenTie(Observed):
    """An embedding and an output layer that hold equal weights, or were to share one, and have one each."""

    PROBE = "model-build"
    PART = "TIE"
    NUMBERED = True
    EVIDENCE = Evidence.LOCATED

    embedding: str = doc("the weight of the embedding", "")
    head: str = doc("the weight of the output layer", "")
    meant: bool = doc("true if the model's configuration asks to tie them (tie_word_embeddings)", False)
    equal: bool = doc("true if both hold the same values before the first update", True)

    @property
    def level(self) -> str:
        """W where both were to be one, and began so."""
        return "W" if self.meant and self.equal else "I"

    def text(self) -> str:
        """Both, and whether they were to be one."""
        text = f"{self.embedding} and {self.head} are separate tensors with "
        text += "equal values" if self.equal else "different values"
        return text + ("; the configuration sets tie_word_embeddings" if self.meant else "")


class IdleStatistics(Observed):
    """Batch normalisation layers whose running mean is still zero after batches that should have moved it."""

    PROBE = "model-build"
    PART = "STATISTICS"
    EVIDENCE = Evidence.LOCATED
    LEVEL = "W"

    layers: list[str] = doc("layers whose running mean is zero, at most eight", factory=list)
    layer_count: int = doc("number of these layers", 0)
    momentum: float | None = doc("momentum of the first of these layers; null: a cumulative average")
    batches: int = doc("number of batches that the first of these layers has seen", 0)

    def text(self) -> str:
        """Which, and after how many batches."""
        momentum = "no momentum" if self.momentum is None else f"momentum {self.momentum:g}"
        return (
            f"{format_count(self.layer_count, 'batch norm layer')} with a running mean of zero after {format_count(self.batches, 'batch')}:"
            f" {', '.join(self.layers)} ({momentum})"
        )


class FrozenStatistics(Observed):
    """Batch normalisation layers that are frozen and whose running statistics each batch still moves."""

    PROBE = "model-build"
    PART = "FROZEN"
    EVIDENCE = Evidence.LOCATED
    LEVEL = "I"

    layers: list[str] = doc("frozen layers that saw a batch in train mode, at most eight", factory=list)
    layer_count: int = doc("number of these layers", 0)

    def text(self) -> str:
        """Which they are."""
        layers = format_count(self.layer_count, "batch norm layer")
        return f"{layers} frozen, but in train mode: {', '.join(self.layers)}"


class ShapeMismatch(Observed):
    """A module whose forward raised because shapes did not fit."""

    PROBE = "model-build"
    PART = "SHAPE"
    EVIDENCE = Evidence.LOCATED
    LEVEL = "E"

    module: str = doc("the module whose forward raised", "")
    module_class: str = doc("its class", "")
    inputs: Shapes = doc("shapes of its arguments by name, at most eight", factory=dict)
    weights: Shapes = doc("shapes of its parameters by name, at most eight", factory=dict)
    line: str = doc("the line of the program", "")
    first: bool = doc("true if no step was completed before", False)
    error: str = doc("what was raised, shortened", "")

    @property
    def named_shapes(self) -> Shapes:
        """Of arguments and parameters, by name."""
        return {**self.inputs, **self.weights}

    def text(self) -> str:
        """Which module, its shapes, and what was raised."""
        shapes = ", ".join(f"{name} {shape}" for name, shape in self.named_shapes.items())
        text = f"{self.module or 'root'} ({self.module_class}) raised at step {self.step}: {shapes}; {self.error}"
        return text[:500]
