"""Flags reach the configs of real programs, in real processes, and each outcome is reported."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

NULL = {"LOSS.NULL_MASKING": True}


def run_script(run: Any, text: str, *args: str, name: str = "s.py") -> Any:
    path = run.path.parent / name
    path.write_text(textwrap.dedent(text))
    done = run.run_python(str(path), *args)
    assert run.boot_errors == ""
    assert run.list_events("probe_off") == []
    return done


def list_injections(run: Any) -> list[tuple[str, str, str]]:
    return [(event["flag"], event.get("status", "set"), event["where"]) for event in run.list_events("injection")]


YACS = """
from yacs.config import CfgNode as CN
_C = CN()
_C.LR = 0.1
_C.DEBUG = CN()
_C.DEBUG.LOSS = CN()
_C.DEBUG.LOSS.NULL_MASKING = False
_C.DEBUG.SCHEDULING = False
_C.DEBUG.EVERY = 10
def get(): return _C.clone()
"""


def test_yacs_at_freeze(make_run: Any) -> None:
    run = make_run(flags=NULL)
    done = run_script(
        run,
        YACS
        + "cfg = get(); cfg.merge_from_list(['LR', 0.5]); cfg.freeze(); print(cfg.DEBUG.LOSS, cfg.LR, cfg.is_frozen())",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "NULL_MASKING: True 0.5 True\n"
    assert list_injections(run) == [("LOSS.NULL_MASKING", "set", "yacs DEBUG.LOSS.NULL_MASKING")]
    event = run.list_events("injection")[0]
    assert (event["old"], event["new"]) == (False, True)


def test_yacs_file_that_says_no_is_overruled(make_run: Any) -> None:
    run = make_run(flags=NULL)
    (run.path.parent / "c.yaml").write_text("DEBUG: {LOSS: {NULL_MASKING: false}}\n")
    done = run_script(
        run, YACS + "cfg = get(); cfg.merge_from_file('c.yaml'); cfg.freeze(); print(cfg.DEBUG.LOSS.NULL_MASKING)"
    )
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    "use",
    [
        "cfg = get(); cfg.merge_from_list(['LR', 1.0]); print(dict.get(dict.get(cfg, 'DEBUG'), 'LOSS').NULL_MASKING)",
        "cfg = get(); print(cfg.DEBUG.LOSS.NULL_MASKING)",
        "print(_C.DEBUG.LOSS.NULL_MASKING)",
        "cfg = get(); print(cfg['DEBUG']['LOSS']['NULL_MASKING'])",
        "cfg = get(); cfg.merge_from_other_cfg(CN({'LR': 1.0})); print(cfg.DEBUG.LOSS.NULL_MASKING)",
    ],
    ids=["merged", "cloned and read", "read", "cloned, by item", "merged with another"],
)
def test_yacs_never_frozen(make_run: Any, use: str) -> None:
    run = make_run(flags=NULL)
    assert run_script(run, YACS + use).stdout == "True\n"
    assert list_injections(run) == [("LOSS.NULL_MASKING", "set", "yacs DEBUG.LOSS.NULL_MASKING")]


def test_yacs_already_on(make_run: Any) -> None:
    run = make_run(flags=NULL)
    run_script(run, YACS.replace("NULL_MASKING = False", "NULL_MASKING = True") + "get().freeze()")
    assert list_injections(run) == [("LOSS.NULL_MASKING", "already", "yacs DEBUG.LOSS.NULL_MASKING")]


def test_yacs_rejects_with_a_hint_and_runs_on(make_run: Any) -> None:
    run = make_run(flags={"LOSS.NULL_MASK": True})
    done = run_script(run, YACS + "cfg = get(); cfg.freeze(); print('ran', cfg.DEBUG.LOSS.NULL_MASKING)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran False\n", "")
    assert list_injections(run) == [("LOSS.NULL_MASK", "rejected", "yacs")]
    assert run.list_events("injection")[0]["hint"] == "did you mean DEBUG.LOSS.NULL_MASKING?"


def test_strict_flags_end_the_rank(make_run: Any) -> None:
    run = make_run(flags={"LOSS.NULL_MASK": True}, strict_flags=True)
    done = run_script(run, YACS + "cfg = get(); cfg.freeze(); print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "tdbg: the program's config rejects the flag LOSS.NULL_MASK (yacs)",
        "tdbg: did you mean DEBUG.LOSS.NULL_MASKING?; without --strict-flags the run goes on",
    ]


def test_yacs_new_keys_where_they_are_allowed(make_run: Any) -> None:
    run = make_run(flags={"LOSS.CLASS_WEIGHTING": True, "MY.OWN.FLAG": "3"})
    done = run_script(
        run,
        """
        from yacs.config import CfgNode as CN
        cfg = CN({"DEBUG": {"LOSS": {"X": 1}}}, new_allowed=True); cfg.set_new_allowed(True)
        cfg.freeze(); print(cfg.DEBUG.LOSS.CLASS_WEIGHTING, cfg.DEBUG.MY.OWN.FLAG, cfg.DEBUG.MY.is_frozen())
        """,
    )
    assert (done.stdout, done.stderr) == ("True 3 True\n", "")
    assert {status for _, status, _ in list_injections(run)} == {"set"}


@pytest.mark.parametrize(
    ("keep", "value", "then"),
    [
        ("10", "50", "50"),
        ("0.5", "2", "2.0"),
        ("'a'", "b", "'b'"),
        ("[1]", "[2, 3]", "[2, 3]"),
        ("None", "7", "7"),
        ("1", False, "0"),
    ],
)
def test_values_take_the_type_of_the_old_one(make_run: Any, keep: str, value: Any, then: str) -> None:
    run = make_run(flags={"EVERY": value})
    done = run_script(
        run, YACS.replace("EVERY = 10", f"EVERY = {keep}") + "cfg = get(); cfg.freeze(); print(repr(cfg.DEBUG.EVERY))"
    )
    assert done.stdout == f"{then}\n"


@pytest.mark.parametrize("value", [True, "soon"])
def test_values_that_do_not_fit_are_rejected(make_run: Any, value: Any) -> None:
    run = make_run(flags={"EVERY": value})
    done = run_script(run, YACS + "cfg = get(); cfg.freeze(); print(cfg.DEBUG.EVERY)")
    assert done.stdout == "10\n"
    assert list_injections(run) == [("EVERY", "rejected", "yacs DEBUG.EVERY")]


def test_lower_case_and_flat_keys(make_run: Any) -> None:
    run = make_run(flags={**NULL, "SCHEDULING": True, "LOSS.CLASS_WEIGHTING": True})
    done = run_script(
        run,
        """
        from yacs.config import CfgNode as CN
        cfg = CN({"debug": {"loss": {"null_masking": False}, "scheduling": False}, "debug_class_weighting": False})
        cfg.freeze(); print(cfg.debug.loss.null_masking, cfg.debug.scheduling, cfg.debug_class_weighting)
        """,
    )
    assert done.stdout == "True True True\n"


def test_configs_without_a_debug_section_have_no_say(make_run: Any) -> None:
    run = make_run(flags=NULL, strict_flags=True)
    done = run_script(
        run, "from yacs.config import CfgNode as CN\nCN({'A': 1}).freeze(); CN({'DEBUG': False}).freeze(); print('ran')"
    )
    assert done.stdout == "ran\n"
    assert list_injections(run) == []


def test_flags_that_wake_tdbg_itself_need_no_key(make_run: Any) -> None:
    run = make_run(flags={"GRADIENTS": True}, strict_flags=True)
    assert run_script(run, YACS + "get().freeze(); print('ran')").stdout == "ran\n"


def test_a_family_needs_one_member(make_run: Any) -> None:
    from tdbg.core.flags import parse_flag

    run = make_run(flags=parse_flag("LOSS"), strict_flags=True)
    assert run_script(run, YACS + "cfg = get(); cfg.freeze(); print(cfg.DEBUG.LOSS.NULL_MASKING)").stdout == "True\n"
    assert list_injections(run) == [("LOSS.NULL_MASKING", "set", "yacs DEBUG.LOSS.NULL_MASKING")]


@pytest.mark.parametrize("mode", ["none", "env", "argparse", "hydra"])
def test_inject_mode_leaves_others_alone(make_run: Any, mode: str) -> None:
    run = make_run(flags=NULL, inject=mode)
    assert run_script(run, YACS + "cfg = get(); cfg.freeze(); print(cfg.DEBUG.LOSS.NULL_MASKING)").stdout == "False\n"
    assert list_injections(run) == []


# OmegaConf and Hydra

OMEGA = """
from omegaconf import OmegaConf
base = OmegaConf.create({"lr": 0.1, "debug": {"loss": {"null_masking": False}}})
OmegaConf.set_struct(base, True)
"""


def test_omegaconf_merge_overrules(make_run: Any) -> None:
    run = make_run(flags=NULL)
    done = run_script(
        run,
        OMEGA
        + "cfg = OmegaConf.merge(base, OmegaConf.from_dotlist(['debug.loss.null_masking=false'])); print(cfg.debug.loss)",
    )
    assert (done.stdout, done.stderr) == ("{'null_masking': True}\n", "")
    assert list_injections(run) == [("LOSS.NULL_MASKING", "set", "omegaconf debug.loss.null_masking")]


def test_omegaconf_structured_and_read_only(make_run: Any) -> None:
    run = make_run(flags=NULL)
    done = run_script(
        run,
        """
        from dataclasses import dataclass, field
        from omegaconf import OmegaConf
        @dataclass
        class DebugConfig: null_masking: bool = False
        @dataclass
        class Config:
            lr: float = 0.1
            debug: DebugConfig = field(default_factory=DebugConfig)
        base = OmegaConf.structured(Config); OmegaConf.set_readonly(base, True)
        cfg = OmegaConf.merge(base, {"lr": 1.0}); print(cfg.debug.null_masking, OmegaConf.is_readonly(cfg))
        print(type(OmegaConf.to_object(cfg)).__name__)
        """,
    )
    assert (done.stdout, done.stderr) == ("True True\nConfig\n", "")


def test_omegaconf_load_and_missing_values(make_run: Any) -> None:
    run = make_run(flags={**NULL, "SCHEDULING": True})
    (run.path.parent / "c.yaml").write_text("debug:\n  scheduling: ???\n  loss: {null_masking: '${nowhere}'}\n")
    done = run_script(run, "from omegaconf import OmegaConf\ncfg = OmegaConf.load('c.yaml'); print(cfg.debug)")
    assert (done.stdout, done.stderr) == ("{'scheduling': True, 'loss': {'null_masking': True}}\n", "")


@pytest.mark.parametrize("value", ["${boom:}", "${lr.${debug.x}}", "${debug.scheduling}", "${oc.env:NOT_THERE}"])
def test_omegaconf_values_that_cannot_be_resolved(make_run: Any, value: str) -> None:
    run = make_run(flags={"SCHEDULING": True})
    (run.path.parent / "c.yaml").write_text(f"lr: 1\ndebug: {{x: '???', scheduling: '{value}'}}\n")
    register = "from omegaconf import OmegaConf\nOmegaConf.register_new_resolver('boom', lambda: 1 / 0)\n"
    done = run_script(run, register + "print(OmegaConf.load('c.yaml').debug.scheduling)")
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert run.list_events("probe_off") == []


def test_omegaconf_doubt_becomes_a_rejection_at_the_end(make_run: Any) -> None:
    run = make_run(flags={"LOSS.NULL_MASK": True})
    assert run_script(run, OMEGA + "print(base.debug.loss)").stdout == "{'null_masking': False}\n"
    assert list_injections(run) == [("LOSS.NULL_MASK", "rejected", "omegaconf")]
    assert "did you mean debug.loss.null_masking?" in run.list_events("injection")[0]["hint"]


def test_omegaconf_doubt_is_settled_before_the_first_step(make_run: Any) -> None:
    run = make_run(flags={"LOSS.NULL_MASK": True}, strict_flags=True)
    done = run_script(run, OMEGA + "from tdbg.inject import take; take.finalize_injection(); print('stepped')")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 2


def test_omegaconf_key_that_comes_later_is_no_rejection(make_run: Any) -> None:
    run = make_run(flags=NULL)
    done = run_script(
        run,
        """
        from omegaconf import OmegaConf
        first = OmegaConf.create({"debug": {"other": 1}})
        print(OmegaConf.merge(first, {"debug": {"loss": {"null_masking": False}}}).debug.loss.null_masking)
        """,
    )
    assert done.stdout == "True\n"
    assert [status for _, status, _ in list_injections(run)] == ["set"]


HYDRA = """
import hydra
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print(cfg.DEBUG.LOSS.NULL_MASKING, cfg.lr)
if __name__ == "__main__":
    main()
"""


def run_hydra(run: Any, *overrides: str, text: str = HYDRA) -> Any:
    conf = run.path.parent / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "config.yaml").write_text("lr: 0.1\nDEBUG:\n  LOSS:\n    NULL_MASKING: false\n")
    return run_script(run, text, f"hydra.run.dir={run.path.parent}/out", *overrides)


def test_hydra_main(make_run: Any) -> None:
    run = make_run(flags=NULL)
    done = run_hydra(run, "lr=0.5", "DEBUG.LOSS.NULL_MASKING=false")
    assert (done.stdout, done.stderr) == ("True 0.5\n", "")
    assert list_injections(run)[-1] == ("LOSS.NULL_MASKING", "set", "hydra DEBUG.LOSS.NULL_MASKING")
    assert "NULL_MASKING: true" in (run.path.parent / "out/.hydra/config.yaml").read_text()


def test_hydra_rejects(make_run: Any) -> None:
    run = make_run(flags={"LOSS.NULL_MASK": True})
    assert run_hydra(run).stdout == "False 0.1\n"
    assert list_injections(run) == [("LOSS.NULL_MASK", "rejected", "hydra")]


def test_hydra_strict(make_run: Any) -> None:
    run = make_run(flags={"LOSS.NULL_MASK": True}, strict_flags=True)
    done = run_hydra(run)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-2].startswith("tdbg: the program's config rejects the flag LOSS.NULL_MASK")


def test_hydra_compose(make_run: Any) -> None:
    run = make_run(flags=NULL)
    text = """
    from hydra import compose, initialize
    with initialize(version_base=None, config_path="conf"):
        print(compose("config").DEBUG.LOSS.NULL_MASKING)
    """
    assert run_hydra(run, text=text).stdout == "True\n"


# argparse


ARGS = """
import argparse, sys
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("{option}", {how})
a = p.parse_args()
print(vars(a), sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("option", "how", "value", "then"),
    [
        ("--debug-loss-null-masking", "action='store_true'", True, "'debug_loss_null_masking': True"),
        ("--debug.loss.null_masking", "action='store_true'", True, "'debug.loss.null_masking': True"),
        ("--debug_null_masking", "action='store_true'", True, "'debug_null_masking': True"),
        ("--DEBUG-NULL-MASKING", "action='store_const', const=3", True, "'DEBUG_NULL_MASKING': 3"),
        (
            "--debug-null-masking",
            "action=argparse.BooleanOptionalAction, default=False",
            True,
            "'debug_null_masking': True",
        ),
        (
            "--debug-null-masking",
            "action=argparse.BooleanOptionalAction, default=True",
            False,
            "'debug_null_masking': False",
        ),
        ("--debug-null-masking", "type=int, default=0", "5", "'debug_null_masking': 5"),
        ("--debug-null-masking", "type=lambda s: s == 'True', default=False", True, "'debug_null_masking': True"),
        ("--debug-null-masking", "nargs='?', const='all', default=None", True, "'debug_null_masking': 'all'"),
        ("--debug-null-masking", "choices=['a', 'b'], default='a', dest='x'", "b", "'x': 'b'"),
        ("--debug-null-masking", "action='append', default=None", "b", "'debug_null_masking': ['b']"),
    ],
)
def test_argparse(make_run: Any, option: str, how: str, value: Any, then: str) -> None:
    run = make_run(flags={"LOSS.NULL_MASKING": value})
    done = run_script(run, ARGS.format(option=option, how=how), "--lr", "0.5")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{{'lr': 0.5, {then}}} ['--lr', '0.5']\n"
    assert list_injections(run) == [("LOSS.NULL_MASKING", "set", f"argparse {option}")]


def test_argparse_value_that_does_not_fit(make_run: Any) -> None:
    run = make_run(flags={"LOSS.NULL_MASKING": "c"})
    done = run_script(run, ARGS.format(option="--debug-null-masking", how="choices=['a', 'b'], default='a'"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "'debug_null_masking': 'a'" in done.stdout
    assert list_injections(run) == [("LOSS.NULL_MASKING", "rejected", "argparse --debug-null-masking")]


def test_argparse_subparser_remainder_and_subclass(make_run: Any) -> None:
    run = make_run(flags=NULL)
    done = run_script(
        run,
        """
        import argparse
        class Mine(argparse.ArgumentParser): pass
        p = Mine(); sub = p.add_subparsers(dest="command"); train = sub.add_parser("train")
        train.add_argument("--debug-null-masking", action="store_true")
        train.add_argument("opts", nargs=argparse.REMAINDER)
        print(p.parse_args(), p.parse_known_args(["train", "A", "--b"])[0].opts)
        """,
        "train",
        "A",
        "1",
    )
    assert done.stdout == "Namespace(command='train', debug_null_masking=True, opts=['A', '1']) ['A', '--b']\n"


def test_argparse_unknown_option_is_never_given(make_run: Any) -> None:
    run = make_run(flags=NULL)
    done = run_script(run, ARGS.format(option="--debug", how="action='store_true'"), "--lr", "1")
    assert done.stdout == "{'lr': 1.0, 'debug': False} ['--lr', '1']\n"
    assert list_injections(run) == []


def test_argparse_launchers_are_left_alone(make_run: Any) -> None:
    run = make_run(flags=NULL)
    text = ARGS.replace("ArgumentParser()", "ArgumentParser('torchrun')")
    done = run_script(run, text.format(option="--debug-null-masking", how="action='store_true'"))
    assert "'debug_null_masking': False" in done.stdout


def test_argparse_loads_nothing_without_a_match(make_run: Any) -> None:
    run = make_run(flags=NULL)
    code = "import argparse, sys; argparse.ArgumentParser().parse_args([]); print([n for n in sys.modules if n.startswith('tdbg')])"
    done = run.run_python("-c", code)
    assert json.loads(done.stdout.replace("'", '"')) == [
        "tdbg",
        "tdbg.inject",
        "tdbg.inject.on",
        "tdbg.core",
        "tdbg.core.guard",
        "tdbg.inject.on.argparse_",
    ]


OPTS = """
import argparse
p = argparse.ArgumentParser(); p.add_argument("{dest}", nargs="*", default=None); print(getattr(p.parse_args(), "{dest}"))
"""


@pytest.mark.parametrize(
    ("dest", "args", "then"),
    [
        ("opts", ["LR", "1"], ["LR", "1", "DEBUG.LOSS.NULL_MASKING", "True"]),
        ("opts", [], ["DEBUG.LOSS.NULL_MASKING", "True"]),
        ("overrides", ["lr=1"], ["lr=1", "DEBUG.LOSS.NULL_MASKING=True"]),
    ],
)
def test_argv_mode_lengthens_the_override_list(make_run: Any, dest: str, args: list[str], then: list[str]) -> None:
    run = make_run(flags=NULL, inject="argv")
    assert run_script(run, OPTS.format(dest=dest), *args).stdout == f"{then}\n"
    assert list_injections(run) == [("LOSS.NULL_MASKING", "set", f"argv {dest}")]


def test_auto_mode_gives_no_override_a_program_might_not_know(make_run: Any) -> None:
    run = make_run(flags=NULL)
    assert run_script(run, OPTS.format(dest="opts"), "LR", "1").stdout == "['LR', '1']\n"


# jsonargparse

JSON = """
from dataclasses import dataclass
import jsonargparse
@dataclass
class Debug: null_masking: bool = False
def build():
    p = jsonargparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--debug", type=Debug, default=Debug())
    return p
"""


def test_jsonargparse(make_run: Any) -> None:
    run = make_run(flags=NULL)
    done = run_script(
        run,
        JSON
        + "p = build(); cfg = p.parse_args(['--lr', '0.5']); print(cfg.lr, cfg.debug.null_masking, p.instantiate(cfg).debug)",
    )
    assert (done.stdout, done.stderr) == ("0.5 True Debug(null_masking=True)\n", "")
    assert list_injections(run) == [("LOSS.NULL_MASKING", "set", "jsonargparse debug.null_masking")]


def test_jsonargparse_subcommand(make_run: Any) -> None:
    run = make_run(flags=NULL)
    done = run_script(
        run,
        JSON
        + """
p = jsonargparse.ArgumentParser(); sub = p.add_subcommands(); sub.add_subcommand("fit", build())
print(p.parse_args(["fit"]).fit.debug.null_masking)
""",
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_jsonargparse_below_another_section(make_run: Any) -> None:
    run = make_run(flags=NULL)
    done = run_script(
        run,
        """
        import jsonargparse
        class Model:
            def __init__(self, width: int = 3, debug_null_masking: bool = False): self.flag = debug_null_masking
        p = jsonargparse.ArgumentParser(); p.add_class_arguments(Model, "model")
        print(p.instantiate(p.parse_args([])).model.flag)
        """,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert list_injections(run) == [("LOSS.NULL_MASKING", "set", "jsonargparse model: debug_null_masking")]


# tdbg.flag()


def test_flag_of_a_run(make_run: Any) -> None:
    run = make_run(flags={**NULL, "EVERY": "5", "SCHEDULING": False})
    names = [
        "LOSS.NULL_MASKING",
        "debug.loss.null_masking",
        "null_masking",
        "LOSS",
        "EVERY",
        "SCHEDULING",
        "CHECKPOINT",
    ]
    done = run_script(run, f"import tdbg; print([tdbg.flag(name) for name in {names}])")
    assert done.stdout == "[True, True, True, True, '5', False, False]\n"
    assert ("LOSS.NULL_MASKING", "set", "env tdbg.flag()") in list_injections(run)
    assert not any(flag == "CHECKPOINT" for flag, _, _ in list_injections(run))


@pytest.mark.parametrize("mode", ["yacs", "none"])
def test_flag_is_shut_by_other_modes(make_run: Any, mode: str) -> None:
    run = make_run(flags=NULL, inject=mode)
    assert run_script(run, "import tdbg; print(tdbg.flag('LOSS.NULL_MASKING'))").stdout == "False\n"


def test_flag_where_tdbg_variables_were_dropped(make_run: Any) -> None:
    run = make_run(flags=NULL)
    env = {key: value for key, value in run.build_environment().items() if not key.startswith("TDBG_")}
    assert run.run_python("-c", "import tdbg; print(tdbg.flag('NULL_MASKING'))", env=env).stdout == "True\n"


@pytest.mark.parametrize(
    ("variable", "then"),
    [
        ("", "False"),
        ("LOSS.NULL_MASKING", "True"),
        ('{"LOSS.NULL_MASKING": "7"}', "7"),
    ],
)
def test_flag_outside_a_run(make_run: Any, tmp_path: Path, variable: str, then: str) -> None:
    run = make_run()
    env = {key: value for key, value in run.build_environment().items() if key not in ("TDBG_RUN_DIR", "PYTHONPATH")}
    done = run.run_python(
        "-c", "import tdbg; print(tdbg.flag('LOSS.NULL_MASKING'))", env={**env, "TDBG_FLAGS": variable}
    )
    assert (done.stdout, done.stderr) == (f"{then}\n", "")


@pytest.mark.parametrize(
    ("variable", "asked", "said"),
    [
        (
            "LOSS.NULL_MASKING,MEMRY",
            ["LOSS.NULL_MASKING", "MEMORY"],
            ["no flag is named 'MEMRY'", "did you mean MEMORY?", "tdbg.flag('MEMRY')"],
        ),
        ("MY.OWN=3,lr", ["MY.OWN", "LR"], ["no flag is named 'MY.OWN'", "`tdbg flags list`", "tdbg.flag('MY.OWN')"]),
        ("AMP=,LR", ["AMP", "LR"], ["flag 'AMP' has an empty value", "write AMP or AMP=VALUE"]),
        ("{broken", ["LR"], ["not valid JSON", "write A,B=3"]),
    ],
)
@pytest.mark.parametrize("first", ["tdbg", "tdbg.probes.loss"])
def test_a_wrong_word_in_the_variable_is_named_and_the_others_hold(
    make_run: Any, variable: str, asked: list[str], said: list[str], first: str
) -> None:
    run = make_run()
    env = {key: value for key, value in run.build_environment().items() if key not in ("TDBG_RUN_DIR", "PYTHONPATH")}
    code = f"import tdbg; import {first}; print([tdbg.flag(name) for name in {asked}])"
    done = run.run_python("-c", code, env={**env, "TDBG_FLAGS": variable})
    held = {"LOSS.NULL_MASKING": True, "LR": not variable.startswith("{"), "MY.OWN": "3"}
    assert done.stdout == f"{[held.get(name, False) for name in asked]}\n"
    assert all(word in done.stderr for word in said)
    assert done.stderr.count("tdbg: TDBG_FLAGS") == 1 and all(
        line.startswith("tdbg: ") for line in done.stderr.splitlines()
    )
    assert run.run_python("-c", code, env={**env, "TDBG_FLAGS": variable, "RANK": "1"}).stderr == ""


def test_flag_default_and_a_vanished_run(make_run: Any) -> None:
    run = make_run()
    env = {**run.build_environment(), "TDBG_RUN_DIR": "/nowhere/at/all"}
    env.pop("PYTHONPATH")
    done = run.run_python("-c", "import tdbg; print(tdbg.flag('LOSS.NULL_MASKING', default='x'))", env=env)
    assert (done.stdout, done.stderr) == ("x\n", "")


FORBIDDEN = [
    pytest.param(YACS.replace("NULL_MASKING = False", "NULL_MASKING = True") + "get().freeze()", "yacs", id="yacs"),
    pytest.param(
        """
        from hydra import compose, initialize_config_dir
        import os
        with initialize_config_dir(os.getcwd(), version_base=None): compose("own")
        """,
        "hydra",
        id="hydra",
    ),
    pytest.param(
        """
        import argparse
        p = argparse.ArgumentParser(); p.add_argument("--debug.loss.null_masking", action="store_true")
        p.parse_args(["--debug.loss.null_masking"])
        """,
        "argparse",
        id="argparse",
    ),
    pytest.param(
        """
        import jsonargparse
        p = jsonargparse.ArgumentParser(); p.add_argument("--debug.loss.null_masking", type=bool, default=True)
        p.parse_args([])
        """,
        "jsonargparse",
        id="jsonargparse",
    ),
]


def test_forbid_flags_leaves_the_hooks_of_the_program_alone(make_run: Any) -> None:
    """torch goes through its table of hooks while they are called, and ends the program if one is taken out."""
    run = make_run(forbid_flags=True, level="off")
    done = run_script(
        run,
        """
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook
        from yacs.config import CfgNode as CN
        C = CN(); C.DEBUG = CN(); C.DEBUG.LOSS = CN(); C.DEBUG.LOSS.NULL_MASKING = False
        stepped = []
        register_optimizer_step_pre_hook(lambda *_: stepped.append(1))
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        print(len(stepped), C.DEBUG.LOSS.NULL_MASKING)
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 False\n", "")


@pytest.mark.parametrize(("program", "library"), FORBIDDEN)
def test_forbid_flags_looks_at_the_programs_own_configuration(make_run: Any, program: str, library: str) -> None:
    program = textwrap.dedent(program) + "\nprint('ran')\n"
    for forbid in (True, False):
        run = make_run(forbid_flags=forbid)
        (run.path.parent / "own.yaml").write_text("debug: {loss: {null_masking: true}, port: 7, dir: logs}\n")
        done = run_script(run, program)
        [(flag, status, where)] = list_injections(run)
        assert (flag, status, where.split()[0]) == ("LOSS.NULL_MASKING", "own", library)
        assert (done.returncode, done.stdout) == ((2, "") if forbid else (0, "ran\n"))
        lines = done.stderr.splitlines()
        assert not forbid or lines == [
            f"tdbg: --forbid-flags: LOSS.NULL_MASKING is on in the program's own configuration ({where})",
            "tdbg: switch it off there, or for this run with --no-flag LOSS.NULL_MASKING",
        ]
        assert forbid or not lines
    run = make_run(forbid_flags=True, flags={"LOSS.NULL_MASKING": False})
    assert run_script(run, program).stdout == "ran\n"


@pytest.mark.parametrize("level", ["off", "basic"])
@pytest.mark.parametrize("last", [True, False])
def test_forbid_flags_takes_a_config_that_is_never_final_as_it_is_at_the_first_step(
    make_run: Any, level: str, last: bool
) -> None:
    run = make_run(forbid_flags=True, level=level)
    done = run_script(
        run,
        f"""
        import torch
        from omegaconf import OmegaConf
        base = OmegaConf.create({{"debug": {{"loss": {{"null_masking": {not last}}}}}}})
        cfg = OmegaConf.merge(base, {{"debug": {{"loss": {{"null_masking": {last}}}}}}})
        weight = torch.nn.Parameter(torch.ones(1)); optimizer = torch.optim.SGD([weight], lr=0.1)
        print("made"); (weight * 2).sum().backward(); optimizer.step(); print("stepped")
        """,
    )
    assert (done.returncode, done.stdout) == ((2, "made\n") if last else (0, "made\nstepped\n"))
    assert ("omegaconf debug.loss.null_masking" in done.stderr) == last


@pytest.mark.parametrize("level", ["off", "basic"])
@pytest.mark.parametrize("last", [True, False])
def test_forbid_flags_takes_a_config_that_is_never_final_as_it_is_at_the_first_evaluation(
    make_run: Any, level: str, last: bool
) -> None:
    """At exit it would be too late: the evaluation had run with the flag on."""
    run = make_run(forbid_flags=True, level=level)
    done = run_script(
        run,
        f"""
        import torch
        from yacs.config import CfgNode
        cfg = CfgNode(dict(DEBUG=dict(MEMORY={not last})))
        cfg.merge_from_list(["DEBUG.MEMORY", {last}])
        model = torch.nn.Linear(2, 2)
        print("made")
        with torch.no_grad():
            model(torch.ones(1, 2))
        print("evaluated", cfg.is_frozen(), cfg.DEBUG.MEMORY)
        """,
    )
    assert (done.returncode, done.stdout) == ((2, "made\n") if last else (0, "made\nevaluated False False\n"))
    assert ("yacs DEBUG.MEMORY" in done.stderr) == last


@pytest.mark.parametrize("value", ["10", "'no'", "None", "'logs'", "False", "0"])
def test_what_is_no_flag_that_is_on_forbids_nothing(make_run: Any, value: str) -> None:
    run = make_run(forbid_flags=True)
    own = YACS.replace("DEBUG.EVERY = 10", f"DEBUG.EVERY = {value}; _C.debugger = True; _C.DEBUG.AMP = False")
    assert run_script(run, own + "get().freeze(); print('ran')").stdout == "ran\n"
    assert list_injections(run) == []


@pytest.mark.parametrize(
    ("typed", "options", "then"),
    [
        ("debug_memory_usage", ["--debug_memory", "--debug_memory_usage"], "--debug_memory_usage"),
        ("MEMORY", ["--debug_memory_usage", "--debug_memory"], "--debug_memory"),
        ("MEMORY", ["--debug-memory-usage", "--memory"], "--debug-memory-usage"),
        ("enable_memory_usage", ["--debug_memory_usage", "--enable_memory_usage"], "--enable_memory_usage"),
        ("memory_usage", ["--debug_memory", "--debug_memory_usage"], "--debug_memory_usage"),
        ("debug_null_masking", ["--debug_loss_null_masking", "--debug_null_masking"], "--debug_null_masking"),
    ],
)
def test_the_name_as_typed_is_tried_first(tmp_path: Path, typed: str, options: list[str], then: str) -> None:
    lines = ["import argparse, sys", "p = argparse.ArgumentParser()"]
    lines += [f"p.add_argument({option!r}, action='store_true')" for option in options]
    (tmp_path / "x.py").write_text("\n".join([*lines, "print([k for k, v in vars(p.parse_args()).items() if v])"]))
    words = [sys.executable, "-m", "tdbg", "run", "--run-dir", "r", "-f", typed, "--", sys.executable, "x.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{[then.strip('-').replace('-', '_')]}\n"
    report = subprocess.run([*words[:3], "report", "r", "--all"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert f"set argparse {then}: False became True" in report


def test_the_name_as_typed_comes_first_in_a_config_tree(make_run: Any) -> None:
    run = make_run(flags={"MEMORY": True}, flag_names={"MEMORY": "debug_memory_usage"})
    own = "_C.DEBUG.MEMORY = False; _C.debug_memory_usage = False\n"
    done = run_script(run, YACS + own + "cfg = get(); cfg.freeze(); print(cfg.DEBUG.MEMORY, cfg.debug_memory_usage)")
    assert done.stdout == "False True\n"
    assert list_injections(run) == [("MEMORY", "set", "yacs debug_memory_usage")]
