"""Rules that are loaded only when an event needs them."""

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.events import Event, Observation, Start
from tdbg.core.rundir import ProcessDir, RunDir
from tdbg.rules import RULES, Rule, _rule_cards
from tdbg.rules._rank_looks import RankLooks
from tdbg.rules._rule_cards import LoadedCard, RuleCard, describe_rule, list_rule_cards
from tdbg.rules.rule_engine import judge_run
from tdbg.rules.view import View

RUNS = Path(__file__).parents[1] / "contract" / "runs"
SHOW_LOADED = """
import sys
from pathlib import Path
from tdbg.core.rundir import RunDir
from tdbg.rules.rule_engine import judge_run
judge_run(RunDir(Path(sys.argv[1])))
print(*sorted(name.removeprefix("tdbg.rules.") for name in sys.modules if name.startswith("tdbg.rules.")))
"""


@pytest.fixture
def cards_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for the cards of this test alone; no rule counts as loaded."""
    list(RULES)
    path = tmp_path / "rule_cards.json"
    monkeypatch.setattr(_rule_cards, "_get_cards_path", lambda: path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(RULES, "_loaded", False)
    _rule_cards._read_cards.cache_clear()
    yield path
    _rule_cards._read_cards.cache_clear()


def forget_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process."""
    _rule_cards._read_cards.cache_clear()
    monkeypatch.setattr(RULES, "_loaded", False)


def unpack_run(name: str, folder: Path) -> Path:
    with tarfile.open(RUNS / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def test_the_cards_are_kept_and_say_the_same(cards_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = list_rule_cards()
    assert all(isinstance(card, LoadedCard) for card in loaded)
    forget_cards(monkeypatch)
    kept = list_rule_cards()
    assert not any(isinstance(card, LoadedCard) for card in kept)
    assert [vars(card) for card in kept] == [describe_rule(rule) for rule in RULES]


def test_a_changed_file_makes_them_worthless(cards_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list_rule_cards()
    stamps = _rule_cards.stamp_sources()
    name = next(name for name in stamps if name.startswith("rules/n001_"))
    monkeypatch.setattr(_rule_cards, "stamp_sources", lambda: {**stamps, name: [1, 2]})
    forget_cards(monkeypatch)
    assert all(isinstance(card, LoadedCard) for card in list_rule_cards())


@pytest.mark.parametrize("text", ["", "[1]", '{"sources": {}}', '{"cards": [], "sources"'])
def test_a_torn_file_is_none(text: str, cards_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards_file.write_text(text)
    forget_cards(monkeypatch)
    assert all(isinstance(card, LoadedCard) for card in list_rule_cards())


def test_where_nothing_may_be_written_all_rules_are_loaded(cards_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert all(isinstance(card, LoadedCard) for card in list_rule_cards()) and not cards_file.exists()


def test_a_rule_of_another_package_comes_last(cards_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Rule):
        code = "MY-001"

    list_rule_cards()
    monkeypatch.setitem(RULES._items, Mine.code, Mine)
    forget_cards(monkeypatch)
    *own, last = list_rule_cards()
    assert isinstance(last, LoadedCard) and last.rule is Mine and not any(isinstance(card, LoadedCard) for card in own)
    Mine.code = Mine.name = own[0].code
    assert all(isinstance(card, LoadedCard) for card in list_rule_cards()), "two of one code: the registry decides"


def test_a_rule_whose_file_cannot_be_loaded_any_more(cards_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = RuleCard(**{**describe_rule(next(iter(RULES))), "module": "gone"})
    with pytest.raises(ImportError, match="gone"):
        card.load_rule()
    RULES.broken.clear()


@pytest.mark.parametrize("name", sorted(path.name.partition(".")[0] for path in RUNS.glob("*.tar.gz")))
def test_a_verdict_is_the_same(name: str, cards_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(unpack_run(name, tmp_path))
    loaded = judge_run(run).as_dict()
    assert cards_file.exists()
    forget_cards(monkeypatch)
    assert judge_run(run).as_dict() == loaded


@pytest.mark.parametrize("world", [1, 2])
def test_rules_for_several_ranks_miss_nothing(
    world: int, cards_file: Path, make_stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a start says that there is one rank, and more of them come."""
    run = make_stream()
    for rank in range(2):
        folder = run.begin_rank(rank, world)
        run.emit_steps(folder, [1.0] * 12)
        for step in range(1, 12):
            values = {
                "group": [0, 1],
                "wrapped": True,
                "module": 0,
                "names": ["w [4]"],
                "checksums": [f"{step * (1 + rank * (step > 5)):08x}"],
                "norms": [1.0 + step + rank * (step > 5)],
            }
            run.emit_events(
                folder, Observation(probe="rank-weights", part="WEIGHTS", step=step, text="", values=values)
            )
        run.end_process(folder, 12)
    run.record_exit()
    shown: list[list[ProcessDir]] = []
    note_start = RankLooks.record_launch

    def record_process(looks: Any, process: ProcessDir, event: Event) -> None:
        shown[-1] += [process] if isinstance(event, Start) else []
        note_start(looks, process, event)

    monkeypatch.setattr(RankLooks, "record_launch", record_process)
    shown.append([])
    loaded = judge_run(run.run).as_dict()
    forget_cards(monkeypatch)
    shown.append([])
    assert judge_run(run.run).as_dict() == loaded
    assert [found["code"] for found in loaded["findings"]] == ["TD-R008"]
    assert len(shown[0]) == 6 and [one.label for one in shown[1]].count("rank0000") == 3, "R008 to R010 see each start"


@pytest.mark.cold
def test_a_small_run_loads_the_rules_that_it_needs(tmp_path: Path) -> None:
    run = unpack_run("single", tmp_path)
    environ = {"PYTHONPATH": str(Path(_rule_cards.__file__).parents[2]), "PYTHONPYCACHEPREFIX": str(tmp_path / "cache")}

    def list_loaded_rules() -> list[str]:
        command = [sys.executable, "-c", SHOW_LOADED, str(run)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.split()

    first, second = list_loaded_rules(), list_loaded_rules()
    assert "a001_skip_streak" in first and "l001_no_nulls_seen" in first
    assert "r001_uneven_ranks" in first and not [name for name in second if name.startswith(("r001", "r005", "r008"))]
    assert "a001_skip_streak" in second and "l001_no_nulls_seen" not in second and len(second) < len(first) - 30


def test_rules_on_runs_without_events_say_so(cards_file: Path, make_stream: Any) -> None:
    """Those that conclude without an event need none; the others, loaded or not, conclude nothing."""
    run = make_stream(flags={"LOSS.NULL_MASKING": True}, capture=["layers.*"], capture_upload="file:///nowhere")
    (run.run.path / "boot").mkdir(exist_ok=True)
    (run.run.path / "boot" / "errors.log").write_text("ImportError: torch\n")
    run.run.update_info(end=1.0, exit={"code": 1, "signal": None})
    view = View(run.run)
    view.read_outcome(1)
    spoke = {card.code: bool(list(card.load_rule().finish(view))) for card in list_rule_cards()}
    assert {code for code, said in spoke.items() if said} == {"TD-C003", "TD-C005"}
    silent = [card.code for card in list_rule_cards() if card.has_finish and card.needs_process]
    assert len(silent) > 10 and not any(spoke[code] for code in silent)
