"""Which directory a run gets, and who shares it."""

import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.config import Settings
from tdbg.core.errors import LaunchError, TdbgError
from tdbg.launch import join

RECORD = {"command": ["python", "train.py"], "start": 1.0, "end": None}
DEAD = {"pid": 2**22 + 1, "host": socket.gethostname(), "started": "123"}


@pytest.fixture(autouse=True)
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def open_run(env: dict[str, str] | None = None, command: str = "python train.py", **settings: str):
    record = {**RECORD, "command": command.split(), "supervisor": join.describe_process()}
    return join.open_run(Settings(**settings), command.split(), env or {}, record)


def end_run(path: Path, **values: object) -> None:
    state = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**state, "end": 2.0, **values}))


def test_a_run_of_its_own_gets_time_and_name() -> None:
    run, leads = open_run()
    assert leads and run.path.parent == Path("tdbg_runs").absolute()
    assert re.fullmatch(r"\d{8}-\d{6}-train", run.path.name)
    assert open_run(name="other")[0].path.name.endswith("-other")


def test_runs_of_the_same_second_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join.time, "strftime", lambda text: "20261121-031500")
    names = [open_run()[0].path.name for _ in range(3)]
    assert names == ["20261121-031500-train", "20261121-031500-train-2", "20261121-031500-train-3"]


@pytest.mark.parametrize("name", ["a/b", "..", "x" * 300])
def test_a_name_that_is_a_path_is_refused(name: str) -> None:
    with pytest.raises(TdbgError, match="invalid run name"):
        open_run(name=name)


def test_a_directory_of_another_run_is_refused() -> None:
    open_run(run_dir="d")
    with pytest.raises(TdbgError, match="already holds a run") as caught:
        open_run(run_dir="d")
    assert caught.value.exit_code == 2


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "thesis.tex").write_text("")
    with pytest.raises(TdbgError, match="is not empty"):
        open_run(run_dir="d")
    assert os.listdir("d") == ["thesis.tex"]


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    assert open_run(run_dir="d")[1]


SHARED = [
    {"TORCHELASTIC_RUN_ID": "abc"},
    {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
    {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"},
    {"NODE_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
]


@pytest.mark.parametrize("env", SHARED)
def test_agents_of_one_job_share_a_directory_without_being_told(env: dict[str, str]) -> None:
    first, leads = open_run(env)
    second, leads_too = open_run(env)
    assert (leads, leads_too) == (True, False)
    assert first.path == second.path
    assert [node["pid"] for node in join.read_nodes(second)] == [os.getpid()]


def test_a_task_of_a_slurm_array_is_named_as_squeue_names_it() -> None:
    env = {"SLURM_JOB_ID": "80", "SLURM_STEP_ID": "0", "SLURM_ARRAY_JOB_ID": "79", "SLURM_ARRAY_TASK_ID": "1"}
    assert join.job_from_env(env) == "slurm-79_1.0"
    assert join.job_from_env({**env, "SLURM_ARRAY_TASK_ID": "2"}) == "slurm-79_2.0"


def test_another_step_of_the_same_slurm_job_is_another_run() -> None:
    one, _ = open_run({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"})
    two, leads = open_run({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1"})
    assert leads and one.path != two.path


def test_two_commands_of_one_batch_script_are_two_runs() -> None:
    """Outside srun the job id is that of the whole script, so it names no run."""
    assert join.job_from_env({"SLURM_JOB_ID": "77"}) == ""


@pytest.mark.parametrize(
    ("command", "job"),
    [
        ("torchrun --nproc-per-node=2 t.py", ""),
        ("torchrun --nnodes=1 --master-port=29501 t.py", ""),
        (
            "torchrun --nnodes=2 --node-rank=1 --master-addr=127.0.0.1 --master_port 29501 t.py",
            "master-addr=127.0.0.1,master-port=29501",
        ),
        ("torchrun --nnodes 1:4 --rdzv_id=7 --rdzv-endpoint=h:1 t.py", "rdzv-id=7,rdzv-endpoint=h:1"),
        ("torchrun --rdzv-id 7 t.py", "rdzv-id=7"),
        ("torchrun --nnodes=2 t.py", "nodes"),
        (
            "accelerate launch --num_machines 2 --main_process_ip h --main_process_port 5 t.py",
            "main-process-ip=h,main-process-port=5",
        ),
        ("python t.py --num-machines", ""),
    ],
)
def test_job_from_command(command: str, job: str) -> None:
    assert join.job_from_command(command.split()) == job


PODS = {
    "ranks": {"RANK": "{}", "WORLD_SIZE": "2", "MASTER_ADDR": "t-master-0", "MASTER_PORT": "23456"},
    "torchrun": {"PET_NNODES": "2", "PET_NODE_RANK": "{}", "PET_MASTER_ADDR": "t", "PET_MASTER_PORT": "23456"},
    "elastic": {"PET_NNODES": "1:2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "t-worker-0:23456"},
}


@pytest.mark.parametrize("kind", PODS)
def test_the_pods_of_a_job_share_the_directory_they_were_all_given(kind: str) -> None:
    """What a PyTorchJob of Kubernetes sets, without an option on the command line."""
    one, other = ({name: value.format(rank) for name, value in PODS[kind].items()} for rank in (0, 1))
    assert open_run(one, "torchrun train.py", run_dir="d")[1] is True
    assert open_run(other, "torchrun train.py", run_dir="d")[1] is False
    elsewhere = {name: value.replace("23456", "23457") for name, value in other.items()}
    with pytest.raises(TdbgError, match="already holds a run"):
        open_run(elsewhere, "torchrun train.py", run_dir="d")


@pytest.mark.parametrize(
    "env",
    [
        {**PODS["ranks"], "RANK": "0", "WORLD_SIZE": "1"},
        {**PODS["ranks"], "RANK": "0", "WORLD_SIZE": "two"},
        {**PODS["ranks"], "RANK": "0", "WORLD_SIZE": "\N{SUPERSCRIPT TWO}"},  # a digit, and no number
        {**PODS["ranks"], "RANK": "$(RANK)"},
        {name: value for name, value in PODS["ranks"].items() if name != "RANK"},
        {name: value for name, value in PODS["ranks"].items() if name != "MASTER_ADDR"},
        {**PODS["torchrun"], "PET_NNODES": "1"},
        {**PODS["torchrun"], "PET_NNODES": "\N{SUPERSCRIPT TWO}"},
        {**PODS["elastic"], "PET_NNODES": "1:1"},
    ],
)
def test_a_program_that_is_alone_shares_its_directory_with_nobody(env: dict[str, str]) -> None:
    open_run(env, run_dir="d")
    with pytest.raises(TdbgError, match="already holds a run"):
        open_run(env, run_dir="d")


def test_the_master_of_an_older_operator_is_told_that_it_meets_at_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    master, worker = {**PODS["ranks"], "RANK": "0", "MASTER_ADDR": "localhost"}, {**PODS["ranks"], "RANK": "1"}
    monkeypatch.setattr(join, "host_name", lambda: "t-master-0")
    assert open_run(master, run_dir="d")[1] is True
    monkeypatch.setattr(join, "host_name", lambda: "t-worker-0")
    assert open_run(worker, run_dir="d")[1] is False


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "::1"])
def test_two_machines_that_each_meet_at_localhost_are_two_jobs(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {**PODS["ranks"], "RANK": "0", "MASTER_ADDR": address}
    open_run(env, run_dir="d")
    assert open_run({**env, "RANK": "1"}, run_dir="d")[1] is False
    monkeypatch.setattr(join, "host_name", lambda: "another-machine")
    with pytest.raises(TdbgError, match="already holds a run"):
        open_run({**env, "RANK": "1"}, run_dir="d")


def start_pods(kind: str, count: int = 2, **more: str) -> list[bool]:
    """Which of the pods of a job leads, where all of them start under Kubernetes."""
    pods = [{name: value.format(rank) for name, value in PODS[kind].items()} for rank in range(count)]
    return [open_run({join.IN_KUBERNETES: "10.0.0.1", **pod, **more}, run_dir="d")[1] for pod in pods]


@pytest.mark.parametrize("kind", PODS)
@pytest.mark.parametrize(
    "ending",
    [
        {"exit": {"code": 1, "signal": None}},
        {"exit": {"code": None, "signal": 15}},
        {"end": None, "supervisor": DEAD},  # killed with its container
    ],
)
def test_the_pods_of_a_failed_job_that_are_started_again_are_its_next_attempt(
    kind: str, ending: dict[str, object]
) -> None:
    """Kubernetes starts a container again with the variables of the first time, and tells no count."""
    assert start_pods(kind) == [True, False]
    for restart in (1, 2):
        end_run(Path("d"), **ending)
        assert start_pods(kind, 3) == [True, False, False]
        state = json.loads(Path("d/run.json").read_text())
        assert (state["restart"], state["end"], state["exit"]) == (restart, None, None)
        assert state["supervisor"] == join.describe_process()


def test_a_job_is_no_restart_where_the_first_one_succeeded_or_another_ran() -> None:
    start_pods("ranks")
    end_run(Path("d"), exit={"code": 0, "signal": None})
    with pytest.raises(TdbgError, match="already holds a run"):
        start_pods("ranks")
    end_run(Path("d"), exit={"code": 1, "signal": None})
    with pytest.raises(TdbgError, match="already holds a run"):
        start_pods("ranks", MASTER_ADDR="another-master-0")
    with pytest.raises(TdbgError, match="already holds a run"):  # nobody starts it again outside of Kubernetes
        open_run({**PODS["ranks"], "RANK": "0"}, run_dir="d")


def test_a_pod_that_failed_and_starts_again_runs_its_command(shell: Any) -> None:
    script = shell.write_script("import os, sys; sys.exit(3 if not os.path.exists('again') else 0)")
    pod = {**PODS["ranks"], "RANK": "0", join.IN_KUBERNETES: "10.0.0.1"}
    codes = []
    for _ in range(3):  # the third time the run has ended well: it is no restart
        done = shell.run_command(sys.executable, script, options=("--run-dir", "d"), env=pod)
        codes.append(done.returncode)
        (shell.folder / "again").touch()
    assert codes == [3, 0, 2], done.stderr


def test_an_option_of_torchrun_counts_before_its_variable() -> None:
    env = {"PET_NNODES": "2", "PET_RDZV_ID": "of-the-pod"}
    assert join.job_from_command(["torchrun", "--rdzv-id=7", "t.py"], env) == "rdzv-id=7"
    assert join.job_from_command(["torchrun", "--nnodes=1", "t.py"], {"PET_NNODES": "2"}) == ""


def test_two_torchrun_agents_share_the_directory_they_were_both_given() -> None:
    line = "torchrun --nnodes=2 --node-rank={} --master-addr=h --master-port=5 t.py"
    assert open_run(command=line.format(0), run_dir="d")[1] is True
    assert open_run(command=line.format(1), run_dir="d")[1] is False
    with pytest.raises(TdbgError, match="already holds a run"):
        open_run(command=line.format(1).replace("port=5", "port=6"), run_dir="d")


def test_a_run_that_is_over_is_not_joined() -> None:
    env = SHARED[0]
    first, _ = open_run(env)
    end_run(first.path)
    second, leads = open_run(env)
    assert leads and second.path != first.path
    open_run(env, run_dir="d")
    end_run(Path("d"))
    with pytest.raises(TdbgError, match="already holds a run"):
        open_run(env, run_dir="d")


def test_a_run_whose_supervisor_is_dead_is_over() -> None:
    env = SHARED[0]
    first, _ = open_run(env)
    end_run(first.path, end=None, supervisor=DEAD)
    assert open_run(env)[0].path != first.path


def test_a_supervisor_on_another_host_is_taken_to_live() -> None:
    env = SHARED[0]
    first, _ = open_run(env)
    end_run(first.path, end=None, supervisor={**DEAD, "host": "elsewhere"})
    assert open_run(env)[0].path == first.path


def test_a_restart_of_the_job_goes_on_in_its_directory_and_one_agent_leads() -> None:
    env = SHARED[0]
    first, _ = open_run(env)
    end_run(first.path, stop_times=[1.0], stopped="TD-N001 (--stop-on)")
    again = {**env, "TORCHELASTIC_RESTART_COUNT": "1"}
    found = [open_run(again) for _ in range(3)]
    assert {run.path for run, _ in found} == {first.path}
    assert [leads for _, leads in found] == [True, False, False]
    state = first.read_info()
    assert (state["restart"], state["end"], state["command"]) == (1, None, ["python", "train.py"])
    assert (state["stop_times"], state["stopped"]) == (None, None), "of the attempt that was stopped"


ELSEWHERE = {**DEAD, "host": "elsewhere"}


@pytest.mark.parametrize("variable", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_a_restart_leads_where_the_host_of_the_first_leader_was_lost(variable: str) -> None:
    """Nothing says that the run has ended: its leader was killed together with its host."""
    env = SHARED[2]
    first, _ = open_run(env)
    end_run(first.path, end=None, supervisor=ELSEWHERE)
    assert open_run(env)[1] is False
    found = [open_run({**env, variable: "1"}) for _ in range(3)]
    assert {run.path for run, _ in found} == {first.path}
    assert [leads for _, leads in found] == [True, False, False]
    assert (first.read_info()["restart"], first.read_info()["supervisor"]) == (1, join.describe_process())


def test_a_requeued_job_counts_although_its_launcher_begins_at_0() -> None:
    """torchrun in a job that SLURM has started again."""
    env = SHARED[2]
    first, _ = open_run(env)
    end_run(first.path, end=None, supervisor=ELSEWHERE)
    requeued = {**env, "SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert [open_run(requeued)[1] for _ in range(2)] == [True, False]
    assert first.read_info()["restart"] == 1


def test_of_agents_that_read_the_state_at_the_same_time_one_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {**SHARED[2], "SLURM_RESTART_COUNT": "1"}
    first, _ = open_run(SHARED[2])
    end_run(first.path, end=None, supervisor=ELSEWHERE)
    state = first.read_info()
    monkeypatch.setattr(join, "_read_state", lambda path: state)
    assert [open_run(env)[1] for _ in range(3)] == [True, False, False]


def test_agents_of_one_launch_that_count_different_restarts_have_one_leader() -> None:
    """torch elastic counts the failures of each node by itself."""
    first, _ = open_run(SHARED[0])
    end_run(first.path, end=None, supervisor=ELSEWHERE)
    assert open_run({**SHARED[0], "TORCHELASTIC_RESTART_COUNT": "1"})[1] is True
    end_run(first.path, end=None, supervisor=ELSEWHERE)  # the one that leads now is on another host than the next
    again = {**SHARED[0], "TORCHELASTIC_RESTART_COUNT": "2"}
    assert open_run(again)[1] is False
    long_ago = join.time.time() - 2 * join.ONE_ROUND_S
    os.utime(first.path / ".leader-1", (long_ago, long_ago))
    assert open_run(again)[1] is True


def test_a_living_leader_of_this_host_keeps_the_lead() -> None:
    open_run(SHARED[0])
    assert open_run({**SHARED[0], "TORCHELASTIC_RESTART_COUNT": "1"})[1] is False


def test_a_folder_that_cannot_be_made_is_125(tmp_path: Path) -> None:
    (tmp_path / "tdbg_runs").write_text("a file")
    with pytest.raises(LaunchError, match="cannot write the run directory") as caught:
        open_run()
    assert caught.value.exit_code == 125
    assert "--run-dir" in caught.value.hint


def test_the_folder_for_runs_is_not_for_the_group_to_write_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        join._make_runs_folder(tmp_path / "tdbg_runs")
    finally:
        os.umask(before)
    assert (tmp_path / "tdbg_runs").stat().st_mode & 0o777 == 0o755
