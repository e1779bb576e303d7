"""Keys: one spelling, read back as it was meant; the grammar as data."""

import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdbg.metrics import keys
from tdbg.metrics.keys import Key, KeyGrammarError, build_key, core_alias

WORDS = st.from_regex(r"[A-Za-z][A-Za-z0-9.\-]{0,8}(_[A-Za-z0-9]{1,6}){0,2}", fullmatch=True)
PHASES = st.one_of(st.sampled_from(keys.PHASES), WORDS.map(lambda word: f"val_mask_{word}"))
METRICS = st.one_of(st.sampled_from(keys.METRICS), st.integers(1, 20).map(lambda n: f"acc{n}"))

READ = {  # text -> phase, metric, task, subset, averaged, core, text
    "train/loss": ("train", "loss", "", "", False, False, False),
    "val/acc1_taxa_L10": ("val", "acc1", "taxa_L10", "", False, False, False),
    "val_mask_meta/partial_chain_accuracy": ("val_mask_meta", "partial_chain_accuracy", "", "", False, False, False),
    "val_mask_SPATIAL/loss": ("val_mask_SPATIAL", "loss", "", "", False, False, False),
    "train/step_avg_loss": ("train", "loss", "", "", True, False, False),
    "train/step_avg_loss_genus": ("train", "loss", "genus", "", True, False, False),
    "val/europe/acc1": ("val", "acc1", "", "europe", False, False, False),
    "schedule/mixup_group_str": ("schedule", "mixup_group", "", "", False, False, True),
    "lr/group0": ("lr", "group0", "", "", False, False, False),
    "train/loss_scale": ("train", "loss_scale", "", "", False, False, False),
    "core/val_loss": ("val", "loss", "", "", False, True, False),
    "core/val_acc1/taxa_L10": ("val", "acc1", "taxa_L10", "", False, True, False),
    "core/val_mask_meta_chain_accuracy": ("val_mask_meta", "chain_accuracy", "", "", False, True, False),
    "core/val_partial_chain_accuracy": ("val", "partial_chain_accuracy", "", "", False, True, False),
    "core/val_mask_A_B_loss": ("val_mask_A_B", "loss", "", "", False, True, False),
}


def list_fields(key):
    return key.phase, key.metric, key.task, key.subset, key.averaged, key.core, key.text


@pytest.mark.parametrize("text", READ)
def test_a_key_is_read_in_its_parts_and_written_back(text):
    key = Key.parse(text)
    assert list_fields(key) == READ[text]
    assert str(key) == text
    assert Key(*list_fields(key)) == key and hash(Key(*list_fields(key))) == hash(key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss",
        "/loss",
        "train/",
        "train//loss",
        "a/b/c/d",
        "train/lo ss",
        "train/loss\n",
        "gradnorm/gradnorm/loss",
        "train/step_avg_",
        "train/_str",
        "train/step_avg_step_avg_loss",
        "core/loss",
        "core/train_step_avg_loss",
        "core/lr_group0x",
        "x" * 600 + "/loss",
    ],
)
def test_what_the_grammar_does_not_have_is_refused(text):
    with pytest.raises(KeyGrammarError) as caught:
        Key.parse(text)
    assert caught.value.hint
    assert not keys.is_key(text)


@given(PHASES, METRICS, st.one_of(st.just(""), WORDS), st.one_of(st.just(""), WORDS), st.booleans(), st.booleans())
def test_any_key_is_read_back_as_it_was_meant(phase, metric, task, subset, averaged, text):
    parts = (phase, metric, task, subset if subset != phase else "", averaged, False, text)
    try:
        key = Key(*parts)
    except KeyGrammarError:  # a task that would make another metric's name: refused when it is made, never misread
        assert keys._parse_fields(keys._format_key(*parts)) != parts
        return
    assert list_fields(Key.parse(str(key))) == parts


@given(PHASES, METRICS, st.one_of(st.just(""), WORDS))
def test_any_copy_for_dashboards_is_read_back(phase, metric, task):
    try:
        key = Key(phase, metric, task, core=True)
    except KeyGrammarError:
        return
    assert list_fields(Key.parse(str(key))) == (phase, metric, task, "", False, True, False)


@given(st.text(max_size=60))
def test_any_text_is_a_key_that_is_written_alike_or_refused(text):
    try:
        key = Key.parse(text)
    except KeyGrammarError:
        return
    assert str(key) == text


def test_names_of_ones_own_are_known_to_the_process_that_made_them():
    key = Key("night", "psnr_y", "red")
    assert list_fields(Key.parse(str(key))) == ("night", "psnr_y", "red", "", False, False, False)
    copy = Key("night_two", "psnr_uv", core=True)
    assert list_fields(Key.parse(str(copy)))[:2] == ("night_two", "psnr_uv")


def test_a_task_that_would_make_the_name_of_another_metric_is_refused():
    with pytest.raises(KeyGrammarError, match="loss_scale"):
        Key("train", "loss", "scale")


@pytest.mark.parametrize("wrong", [{"metric": "step_avg_loss"}, {"metric": "a_str"}, {"metric": "a/b"}, {"metric": ""}])
def test_a_metric_has_no_mark_of_the_grammar_in_its_name(wrong):
    with pytest.raises(KeyGrammarError):
        Key("train", **wrong)


def test_a_prefix_is_put_there_once():
    assert str(build_key("gradnorm", "loss")) == str(build_key("gradnorm", "gradnorm/loss")) == "gradnorm/loss"


def test_copies_have_the_phase_as_it_is_spelt_elsewhere_and_no_mark_of_an_average():
    assert str(core_alias(Key.parse("val/acc1_taxa_L10"))) == "core/val_acc1/taxa_L10"
    assert str(core_alias(Key.parse("train/step_avg_loss"))) == "core/train_loss"
    assert str(core_alias(Key.parse("val_mask_meta/loss"))) == "core/val_mask_meta_loss"
    for text in ("lr/group0", "val/europe/acc1", "train/step_ms", "core/val_loss", "val/loss_str"):
        assert core_alias(Key.parse(text)) is None


def test_every_averaged_key_is_renamed_and_last_values_are_not():
    assert str(Key.parse("train/loss").average()) == "train/step_avg_loss"
    assert str(Key.parse("train/loss_genus").average()) == "train/step_avg_loss_genus"
    assert str(Key.parse("loss/total").average()) == "loss/step_avg_total"
    for text in ("lr/group0", "schedule/mixup", "pipeline/workers", "core/val_loss", "train/lr", "train/lr_head"):
        assert str(Key.parse(text).average()) == text


def test_units_are_the_end_of_a_name():
    units = {text: Key.parse(text).unit for text in ("train/step_ms", "val/chain_acc_pct", "train/loss")}
    assert units == {"train/step_ms": "ms", "val/chain_acc_pct": "pct", "train/loss": ""}
    assert Key.parse("train/avg_samples_per_sec").unit == "per_sec"


def test_the_grammar_as_data_speaks_of_every_form():
    for what, form, example in keys.GRAMMAR:
        assert what and form and str(Key.parse(example)) == example
    examples = [Key.parse(example) for _, _, example in keys.GRAMMAR]
    assert any(key.core for key in examples) and any(key.averaged for key in examples)
    assert any(key.subset for key in examples) and any(key.text for key in examples)


def test_keys_are_sorted_kept_in_dicts_and_copied():
    table = {Key.parse("val/loss"): 1}
    assert table[Key("val", "loss")] == 1
    assert sorted([Key.parse("val/loss"), Key.parse("train/loss")])[0].phase == "train"
    assert pickle.loads(pickle.dumps(Key.parse("val/loss"))) == Key("val", "loss")
    assert Key("val", "loss") != "val/loss"


def test_the_names_need_the_standard_library_alone():
    show = "import sys, tdbg.metrics.keys; print({'torch', 'numpy', 'msgspec', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout == "set()\n"
