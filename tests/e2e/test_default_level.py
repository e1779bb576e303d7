"""Silent bugs, each planted in a small training: the default level names them, and says nothing of the healthy twin."""

import pytest

from tests.chance import pick_share
from tests.e2e.conftest import Runner, assert_named_first, assert_notes_alone, build_program_command

TWINS = 3  # every third: `python -m tests.e2e.corpus` and `python -m tests.e2e.levels` play them all, and more
NAMED = {  # kind -> code, and a part of the first line
    "unused": ("TD-C008", "side.weight, side.bias"),
    "partial-load": ("TD-C010", "0 of 8 keys loaded, 8 of 8 given keys carry the prefix module."),
    "evaluation-mode": ("TD-C012", "pass 1 after step 20"),
    "late-evaluation": ("TD-C012", "pass 1 after step 100"),
    "no-reset": ("TD-C013", "AdamW never resets its gradients"),
    "thrown-away": ("TD-C014", "gradients are cleared before AdamW can use them"),
    "constant": ("TD-D002", "input 0 is 0.5 all over"),
    "repeated": ("TD-D003", "are repeats in one pass"),
    "sampler-epoch": ("TD-D006", "the sampler's epoch is still 0"),
    "dead": ("TD-N005", 'the output of module "body.4" has been zero'),
    "blocked": ("TD-G003", "body.0.weight"),
    "leak": ("TD-M001", "host memory grew"),
    "starved": ("TD-P002", "waiting for batches of Slow (training)"),
    "time-lost": ("TD-P007", "of the time went outside of training steps: checkpoints "),
    "spike": ("TD-S001", "at step 35"),
    "zero-rate": ("TD-S002", "since step 21"),
    "schedule-first": ("TD-S003", "StepLR steps before the optimizer"),
    "schedule-never": ("TD-S004", "CosineAnnealingLR was built but never stepped"),
    "schedule-unit": ("TD-S005", "CosineAnnealingLR of 3 steps was over after 5 updates"),
    "left-out": ("TD-S006", "head.weight, head.bias"),
    "swapped-head": ("TD-S006", "2 of 8 trainable parameters are in no parameter group: head.weight, head.bias"),
    "stuck": ("TD-S007", "unchanged since step 1 (bfloat16"),
    "group-rate": ("TD-S010", "group 1 of AdamW has had a learning rate of 0 since step 1: head.weight, head.bias"),
    "group-rate-falls": ("TD-S010", "group 1 of AdamW has had a learning rate of 0 since step 6: head.weight"),
    "group-rate-negative": ("TD-S002", "the learning rate of group 1 of AdamW is negative: -0.001"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_the_default_level_names_what_is_wrong(watched_runner: Runner, kind: str) -> None:
    assert_named_first(watched_runner(build_program_command("planted", kind, "fault")), *NAMED[kind])


@pytest.mark.parametrize("kind", pick_share(NAMED, TWINS))
def test_the_default_level_is_silent_about_the_healthy_twin(watched_runner: Runner, kind: str) -> None:
    assert_notes_alone(watched_runner(build_program_command("planted", kind, "healthy")))
