"""Nothing of tdbg is in what a program saves, copies, sends or exports: every byte is as without it."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Runner, assert_no_finding, build_program_command

SAME_HASH = {"PYTHONHASHSEED": "0"}
EVERYTHING = ("LOSS", "GRADIENTS", "FORWARD", "MODEL_BUILD", "DATALOADER", "OPTIMIZER", "TRAINING_LOOP", "CHECKPOINT")
MUCH = [word for flag in (*EVERYTHING, "SCHEDULING", "AMP") for word in ("-f", flag)]


@pytest.mark.parametrize(
    "options", [(), ("--level", "extreme", "--capture", "**:output,input,grad", *MUCH)], ids=["default", "extreme"]
)
def test_every_byte_is_the_programs_own(
    watched_runner: Runner,
    bare_runner: Runner,
    options: tuple[str, ...],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """torch.save, pickle, cloudpickle, deepcopy, multiprocessing, jit, export and fx; between steps and within one."""
    words = build_program_command("save_everything", "saved", *([] if options else ["exports"]))
    expected, result = bare_runner(words, SAME_HASH), watched_runner(words, options, SAME_HASH)
    assert result.code == expected.code == 0, result.stderr
    assert {line["event"] for line in expected.list_printed("child") + expected.list_printed("loaded")} == {
        "child",
        "loaded",
    }
    wanted = {line["name"]: line["sha"] for line in expected.list_printed("saved")}
    found = {line["name"]: line["sha"] for line in result.list_printed("saved")}
    assert [name for name in wanted if found.get(name) != wanted[name]] == [] and len(wanted) > 110
    assert result.stdout == expected.stdout
    files = [path.read_bytes() for path in (tmp_path / "saved").iterdir()]
    assert len(files) == len(wanted) and not any(b"tdbg" in data for data in files)
    assert result.list_steps(), "tdbg has watched"
    if not options:
        assert_no_finding(result)
