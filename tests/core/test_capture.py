"""The words of `--capture`: what is a layer, what is of it, and what cannot be meant."""

import pytest

from tdbg.core.capture import Spec, split_parts
from tdbg.core.errors import TdbgError


@pytest.mark.parametrize(
    ("text", "pattern", "kinds"),
    [
        ("layers.*.attn", "layers.*.attn", ("output",)),
        ("a:output, grad", "a", ("output", "grad")),
        (r"re:blocks\.\d+", r"re:blocks\.\d+", ("output",)),
        (r"re:blocks\.\d+:input", r"re:blocks\.\d+", ("input",)),
        ("re:(?:a|b)", "re:(?:a|b)", ("output",)),
        ("re:(?:a|b):grad", "re:(?:a|b)", ("grad",)),
    ],
)
def test_layers_and_kinds(text: str, pattern: str, kinds: tuple[str, ...]) -> None:
    assert Spec.parse(text) == (pattern, kinds)


@pytest.mark.parametrize("text", ["a:", ":output", "a:outputs", "re:(", "re:(:output", "re:a:outputs"])
def test_what_cannot_be_meant(text: str) -> None:
    with pytest.raises(TdbgError, match="--capture"):
        Spec.parse(text)


def test_words_for_parts_of_a_datapoint_name_no_layer() -> None:
    parts, layers = split_parts(["prediction", "conv:grad", " batch ", "batch:output", "re:prediction"])
    assert parts == ("batch", "prediction")
    assert layers == [("conv", ("grad",)), ("batch", ("output",)), ("re:prediction", ("output",))]
