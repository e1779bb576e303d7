"""What the addresses of captured tensors answer, as types: lists, datapoints, pictures, differences, tokens."""

from typing import Any, NotRequired, TypedDict

from tdbg.core.events import Number


class CapturedLayer(TypedDict):
    """Tensors of one path."""

    path: str
    dtypes: list[str]
    shapes: list[list[int]]
    datapoints: int
    bytes: int


class DroppedDatapoints(TypedDict):
    """Datapoints that a rank left out. first, last: their steps, where known."""

    rank: int
    datapoints: int
    reason: str
    first: int | None
    last: int | None


class PageProblem(TypedDict):
    """What is wrong with a page. grave: it cannot be read."""

    path: str
    text: str
    grave: bool


class ListedDatapoint(TypedDict):
    """A datapoint in a list. keys: of the samples of a batch. scalars, flags: what was captured beside its tensors."""

    key: int | str
    rank: int | None
    step: int | None
    epoch: int | None
    phase: str | None
    page: int | None
    tensors: int
    bytes: int
    keys: NotRequired[list[int | str]]
    flags: NotRequired[Any]
    scalars: NotRequired[dict[str, Any]]


class PageListing(TypedDict):
    """What was captured. refused: tensors that were not, by reason. list: where it is asked for."""

    path: str
    datapoints: int
    tensors: int
    bytes: int
    ranks: list[int]
    epochs: list[int]
    layers: list[CapturedLayer]
    refused: dict[str, Any]
    drops: list[DroppedDatapoints]
    problems: list[PageProblem]
    list: NotRequired[list[ListedDatapoint]]


class StoredTensor(TypedDict):
    """A tensor as it is stored. note: what its type needs beside it."""

    path: str
    dtype: str
    shape: list[int]
    bytes: int
    note: dict[str, Any]


class TensorDetails(StoredTensor):
    """A tensor or a slice of it: figures, histogram, and its values if they are few. error: why it cannot be read."""

    error: NotRequired[str]
    figures: NotRequired[dict[str, Number | None]]
    histogram: NotRequired[list[int]]
    slice: NotRequired[str]
    slice_shape: NotRequired[list[int]]
    values: NotRequired[list[Any]]


class TokenList(TypedDict):
    """The text of a datapoint, word by word."""

    path: str
    words: list[str]


class DatapointDetails(TypedDict):
    """One datapoint with its tensors. flags, scalars: what was captured beside them."""

    key: int | str
    rank: int | None
    step: int | None
    epoch: int | None
    phase: str | None
    page: int | None
    bytes: int
    flags: Any
    scalars: dict[str, Any]
    tensors: list[StoredTensor]
    tokens: list[TokenList]


class TokenNumbers(TypedDict):
    """A number of each token."""

    name: str
    values: list[Number]


class ValuedTokens(TokenList):
    """The text of a datapoint with numbers of its tokens."""

    values: list[TokenNumbers]


class TokenLists(TypedDict):
    """All texts of a datapoint."""

    lists: list[ValuedTokens]


class PreviewData(TypedDict):
    """A picture. data: cells in base64, of the type ``kind``: f4, f2 (times scale), raw (bytes) or u1 (steps from low to high).

    shape: planes, rows, columns of cells; whole: of values. block: values of a cell. region: what is shown of the whole.
    """

    kind: str
    shape: list[int]
    whole: list[int]
    block: list[int]
    exact: bool
    image: bool
    region: list[list[int]]
    leading: list[int]
    scale: Number
    low: Number
    high: Number
    said: str
    data: str


class Picture(TypedDict):
    """A tensor as it is drawn, or a part. bars: a histogram from low to high. why: there is no preview, and for what reason."""

    path: str
    dtype: str
    shape: list[int]
    figures: NotRequired[dict[str, Number | None]]
    bars: NotRequired[list[int]]
    low: NotRequired[Number]
    high: NotRequired[Number]
    preview: NotRequired[PreviewData]
    not_finite_at: NotRequired[list[list[int]]]
    error: NotRequired[str]
    why: NotRequired[str]


class PairSide(TypedDict):
    """One of two tensors that are compared. bars: a histogram from low to high."""

    dtype: str
    shape: list[int]
    figures: NotRequired[dict[str, Number | None]]
    bars: NotRequired[list[int]]
    low: NotRequired[Number]
    high: NotRequired[Number]
    preview: NotRequired[PreviewData]


class TensorDistance(TypedDict):
    """How far two tensors are apart. differing: values beyond the tolerance. apart: the largest difference of two values.

    where: of the largest relative error; a, b: the values there. reason: why they differ whatever their values are.
    """

    error: Number
    tolerance: Number
    differing: int
    total: int
    apart: Number
    where: list[int] | None
    a: Any
    b: Any
    reason: str


class GapPicture(TypedDict):
    """The second minus the first."""

    shape: list[int]
    preview: PreviewData


class TensorDifference(TypedDict):
    """Two tensors and their difference; of a part the difference alone. why: there is none, and for what reason."""

    path: str
    first: NotRequired[PairSide]
    second: NotRequired[PairSide]
    distance: NotRequired[TensorDistance]
    difference: NotRequired[GapPicture]
    why: NotRequired[str]
