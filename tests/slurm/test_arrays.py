"""Arrays on a real SLURM, whole, in parts and interrupted: each ends in the table of a single process."""

import json
import re
import shlex
import sys
from pathlib import Path

from slurm_cluster import Cluster, asked, fake_if, states, wait_for_end, wait_until

import fake_engine


def test_eight_shards_on_four_nodes_with_a_gpu_each_and_a_gather_job(cluster: Cluster, reference: bytes) -> None:
    told = cluster.write(
        "--gpus-per-task", "1", "--submit", before='echo "node $SLURMD_NODENAME gpu $CUDA_VISIBLE_DEVICES"'
    )
    array, gather = re.findall(r"submitted: (?:array|gather) (\d+)", told)
    wait_for_end(array, gather)
    assert cluster.is_equal_to(reference)
    assert (states(array), states(gather)) == ({"COMPLETED"}, {"COMPLETED"})
    places = re.findall(r"^node (n\d) gpu (\d)$", cluster.logs(), re.MULTILINE)
    # A task may end before the last one starts, and leave it its place.
    assert len(places) == 8
    assert {node for node, _ in places} == {"n1", "n2", "n3", "n4"}
    assert {gpu for _, gpu in places} == {"0", "1"}


def test_a_script_of_the_users_own_may_count_from_zero(run: Path, cluster: Cluster, reference: bytes) -> None:
    program = shlex.join([sys.executable, fake_engine.__file__, "{}", "density", "--run", str(run), *fake_engine.SMALL])
    script = run.parent / "own.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --output={run.parent}/own-%a.log\nexec {program} $1\n")
    array = asked("sbatch", "--parsable", "--array=0-1", script, "--shard auto")
    gather = asked("sbatch", "--parsable", f"--dependency=afterok:{array}", script)
    wait_for_end(array, gather)
    assert cluster.is_equal_to(reference)
    assert json.loads((run / "density/test/shards.json").read_text())["count"] == 2


def test_shards_that_failed_are_submitted_again_by_the_command_that_status_prints(
    cluster: Cluster, reference: bytes
) -> None:
    is_first_try = '[[ ${SLURM_ARRAY_TASK_ID-} =~ ^[37]$ ]] && mkdir "failed-$SLURM_ARRAY_TASK_ID" 2> /dev/null'
    told = cluster.write("--submit", before=fake_if(is_first_try, dies_at=1))
    array, gather = re.findall(r"submitted: (?:array|gather) (\d+)", told)
    wait_for_end(array, gather)
    assert states(array) == {"COMPLETED", "FAILED"}
    assert states(gather) == {"CANCELLED"}  # and does not wait for ever
    status = cluster.status()
    assert status["missing"] == [3, 7]
    assert status["commands"][0] == f"sbatch --array=3,7 {cluster.script('array')}"
    again = asked("bash", "-c", status["commands"][0]).split()[-1]
    gather_line = status["commands"][1].replace("JOBID", again)
    wait_for_end(again, asked("bash", "-c", gather_line).split()[-1])
    assert (states(again), cluster.is_equal_to(reference)) == ({"COMPLETED"}, True)


def test_two_arrays_on_one_run_at_once_share_the_blocks(cluster: Cluster, reference: bytes) -> None:
    cluster.write("--shards", "3", seconds=0.2)
    arrays = [cluster.submit(), cluster.submit()]
    cluster.gather(*arrays)
    assert [states(array) for array in arrays] == [{"COMPLETED"}, {"COMPLETED"}]
    assert cluster.is_equal_to(reference)


def _slow_at_first(task: int) -> str:
    """A setup that has a task take its time until it is started again: SLURM counts restarts."""
    condition = f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] && [ "${{SLURM_ARRAY_TASK_ID-}}" = {task} ]'
    return fake_if(condition, n_quick=1, seconds=30.0) + 'echo "start ${SLURM_RESTART_COUNT:-0}"'


def test_a_task_that_runs_out_of_time_goes_back_into_the_queue_and_ends_well(
    cluster: Cluster, reference: bytes
) -> None:
    """A minute of time, and a signal 15 s before its end or up to 30 s earlier: after 15 s at the earliest."""
    cluster.write("--shards", "2", before=_slow_at_first(2))
    array = cluster.submit("array", "--time=1", "--signal=B:USR1@15")
    gather = cluster.submit("gather", f"--dependency=afterok:{array}")
    wait_for_end(array, gather)
    assert (states(array), states(gather)) == ({"COMPLETED"}, {"COMPLETED"})
    log = (cluster.run / f"slurm/test/log/array-{array}_2.log").read_text()
    lines = [line for line in log.splitlines() if line.startswith(("start ", "error: "))]
    assert lines == ["start 0", "error: stopped by SIGUSR1", "start 1"]
    assert "start 1" not in (cluster.run / f"slurm/test/log/array-{array}_1.log").read_text()  # that task alone
    assert "DUE TO TIME LIMIT" not in cluster.logs()
    assert cluster.is_equal_to(reference)


def test_an_array_that_is_cancelled_stays_away_until_it_is_submitted_again(cluster: Cluster, reference: bytes) -> None:
    slow = fake_if("[ ! -e again ]", n_quick=1, seconds=30.0)
    cluster.write("--shards", "2", before=slow)
    array = cluster.submit()
    gather = cluster.submit("gather", f"--dependency=afterok:{array}")
    wait_until(lambda: len(cluster.blocks()) == 2, "the first blocks")
    status = cluster.status()
    assert (status["running"], status["is_gathering"], status["commands"]) == ([1, 2], True, [])
    asked("scancel", array)
    wait_for_end(array, gather)
    assert (states(array), states(gather)) == ({"CANCELLED"}, {"CANCELLED"})
    assert cluster.logs().count("error: stopped by SIGTERM") == 2
    folder = cluster.run / "density/test"
    assert not list(folder.glob(".claim-*")) + list(folder.glob(".tmp-*"))
    assert not (folder / "density.parquet").exists()
    (cluster.run.parent / "again").touch()
    again = cluster.submit()
    cluster.gather(again)
    assert (states(again), cluster.is_equal_to(reference)) == ({"COMPLETED"}, True)
