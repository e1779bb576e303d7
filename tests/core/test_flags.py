"""The flag table, and every way a flag may be written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.core import flags
from tdbg.core.errors import TdbgError

TABLE = [flag.name for flag in flags.FLAGS]
REQUIRED = [
    "SCHEDULING",
    "CHECKPOINT",
    "DATALOADER",
    "AUGMENTATION",
    "OPTIMIZER",
    "DISTRIBUTED",
    "MODEL_BUILD",
    "TRAINING_LOOP",
    "VALIDATION_METRICS",
    "DUMP_METRICS",
    "WANDB_METRICS",
    "LOSS.TAXONOMY_SMOOTHING",
    "LOSS.NULL_MASKING",
    "LOSS.CLASS_WEIGHTING",
    "LOSS.GRADNORM_MEMORY",
    "LOSS.GRADNORM_METRICS",
    "LOSS.VERBOSE_GRADNORM_LOGGING",
    "AUTOGRAD_ANOMALY",
    "PROFILER",
    "MEMORY",
    "GRADIENTS",
    "FORWARD",
    "BACKWARD",
    "DEVICE",
    "AMP",
    "VALIDATION",
    "EARLY_STOPPING",
    "LR",
]


def test_the_table_is_complete_and_its_names_are_unique() -> None:
    assert set(REQUIRED) <= set(TABLE) and len(set(TABLE)) == len(TABLE)
    leaves = [flag.leaf for flag in flags.FLAGS]
    assert len(set(leaves)) == len(leaves)
    aliases = [alias for flag in flags.FLAGS for alias in flag.aliases]
    assert len(set(aliases)) == len(aliases) == 13


@pytest.mark.parametrize("flag", flags.FLAGS, ids=lambda flag: flag.name)
def test_every_flag_explains_itself(flag: flags.Flag) -> None:
    assert flag.summary.endswith(".") and len(flag.summary) < 100
    assert flag.help.startswith("Use it") and flag.help.endswith(".")
    assert flag.default is False


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("part", ["", "INPUT", "SUMMARY"])
def test_a_tag_belongs_to_the_flag_that_wrote_it(name: str, part: str) -> None:
    assert flags.owner(flags.tag(name, part)) == name


def test_tags_are_spelt_as_documented() -> None:
    assert flags.tag("LOSS.NULL_MASKING", "INPUT") == "[DEBUG_NULL_MASKING_INPUT]"
    assert flags.owner("[DEBUG_VALIDATION_METRICS]") == "VALIDATION_METRICS"
    assert flags.owner("[DEBUG_VALIDATION_SUMMARY]") == "VALIDATION"
    assert flags.owner("[EPOCH 3]") is None


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("LOSS.NULL_MASKING", "LOSS.NULL_MASKING"),
        ("DEBUG.LOSS.NULL_MASKING", "LOSS.NULL_MASKING"),
        ("debug.loss.null_masking", "LOSS.NULL_MASKING"),
        ("NULL_MASKING", "LOSS.NULL_MASKING"),
        ("memory_usage", "MEMORY"),
        ("debug_memory_usage", "MEMORY"),
        ("ENABLE_AUTOGRAD_ANOMALY", "AUTOGRAD_ANOMALY"),
        ("tensorboard_profiler", "PROFILER"),
        ("gradients", "GRADIENTS"),
    ],
)
def test_one_flag_has_many_spellings(written: str, name: str) -> None:
    assert flags.expand(written) == (name,)


def test_a_family_covers_what_is_below_it() -> None:
    assert set(flags.expand("LOSS")) == {name for name in TABLE if name.startswith("LOSS.")}
    assert flags.covers("LOSS", "LOSS.NULL_MASKING")
    assert not flags.covers("LOSS.NULL", "LOSS.NULL_MASKING")


def test_an_unknown_flag_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(TdbgError, match="no flag is named 'NUL_MASKING'") as caught:
        flags.expand("NUL_MASKING")
    assert caught.value.hint == "did you mean NULL_MASKING?"
    with pytest.raises(TdbgError) as caught:
        flags.expand("XYZZY")
    assert "tdbg flags list" in caught.value.hint
    assert flags.expand("MINE.TOO", known=["MINE.TOO", "MINE.OTHER"]) == ("MINE.TOO",)


def test_values_keep_their_type() -> None:
    assert flags.parse_flag("GRADIENTS") == {"GRADIENTS": True}
    assert flags.parse_flag("GRADIENTS=False") == {"GRADIENTS": False}
    assert flags.parse_flag("PROFILER=3:10") == {"PROFILER": "3:10"}
    with pytest.raises(TdbgError, match="empty value"):
        flags.parse_flag("PROFILER=")


def test_the_presets_are_the_documented_ones() -> None:
    assert set(flags.PRESETS) == {"hierarchical", "distributed", "data", "schedule", "gradnorm", "numerics", "memory"}
    assert all(name in TABLE for names in flags.PRESETS.values() for name in names)
    assert flags.preset("memory") == ("MEMORY", "LOSS.GRADNORM_MEMORY")
    with pytest.raises(TdbgError) as caught:
        flags.preset("numeric")
    assert caught.value.hint == "did you mean numerics?"


@given(st.text(max_size=30))
def test_any_text_is_a_flag_or_an_error_with_a_way_out(text: str) -> None:
    try:
        assert flags.parse_flag(text)
    except TdbgError as error:
        assert str(error) and error.hint
