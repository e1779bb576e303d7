"""Jobs of torchrun: attempts are told apart, and none follows from a later one; ranks that join uneven inputs are a note."""

from tests.e2e.conftest import BIN, PROGRAMS, Result, Runner, assert_notes_alone

# In the store that torchrun shares between attempts, ranks may find each other's old addresses: without tdbg too.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def run_restarted(watched_runner: Runner, *args: str) -> Result:
    words = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    result = watched_runner([*words, str(PROGRAMS / "restarted.py"), *args], env=OWN_STORE)
    assert result.code == 0, result.stderr
    return result


def test_a_nan_after_a_restart_is_of_the_second_attempt(watched_runner: Runner) -> None:
    result = run_restarted(watched_runner, "1")
    found, ended = result.find_finding("TD-N001"), result.find_finding("TD-R003")
    assert (found["rank"], found["first_step"], found["attempt"]) == (1, 20, 1)
    assert (ended["rank"], ended["attempt"], ended["follows_from"]) == (1, 0, None)
    assert "on rank 1, in the loss (attempt 1)" in result.stderr
    assert "attempt 0 failed at step 24 (rank 1: RuntimeError); attempt 1 ended at step 40" in result.stderr


def test_a_restart_that_goes_well_is_blamed_for_nothing(watched_runner: Runner) -> None:
    result = run_restarted(watched_runner)
    above = [found for found in result.verdict["findings"] if found["severity"] != "info"]
    assert [(found["code"], found["attempt"]) for found in above] == [("TD-R003", 0)], result.stderr
    assert {(row["rank"], row["attempts"]) for row in result.verdict["ranks"]} == {(0, 2), (1, 2)}


def test_the_rank_that_was_killed_in_an_attempt_comes_before_those_that_lost_it(watched_runner: Runner) -> None:
    result = run_restarted(watched_runner, "-1", "kill")
    killed, *others = [found for found in result.verdict["findings"] if found["severity"] != "info"]
    assert (killed["code"], killed["rank"], killed["attempt"]) == ("TD-R002", 1, 0), result.stderr
    assert killed["title"].startswith("rank 1 was ended by SIGKILL, last recorded at step ")
    assert [(found["code"], found["rank"], found["follows_from"]["code"]) for found in others] in (
        [],  # the launcher may end the other rank before it sees that its peer is gone
        [("TD-R003", 0, "TD-R002")],
    )
    assert "attempt 0 failed at step 24 (rank 1: SIGKILL)" in result.stderr


def test_ranks_that_join_uneven_inputs_are_a_note(watched_runner: Runner) -> None:
    words = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2", str(PROGRAMS / "joined_inputs.py")]
    result = watched_runner(words)
    assert result.code == 0, result.stderr
    assert_notes_alone(result)
    assert "Join" in result.find_finding("TD-R001")["cause"]
