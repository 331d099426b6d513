"""Arrays on a real SLURM, whole and in parts: each ends in the table of a single process, byte for byte."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from slurm_cluster import Cluster, asked, fake_if, states, wait_for_end

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
    assert set(places) == {(f"n{node}", gpu) for node in (1, 2, 3, 4) for gpu in "01"}


@pytest.mark.parametrize("tasks", ["1-2", "0-1"])
def test_a_script_of_the_users_own_counts_from_one_or_from_zero(
    tasks: str, run: Path, cluster: Cluster, reference: bytes
) -> None:
    program = shlex.join([sys.executable, fake_engine.__file__, "{}", "density", "--run", str(run), *fake_engine.SMALL])
    script = run.parent / "own.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --output={run.parent}/own-%a.log\nexec {program} $1\n")
    array = asked("sbatch", "--parsable", f"--array={tasks}", script, "--shard auto")
    gather = asked("sbatch", "--parsable", f"--dependency=afterok:{array}", script)
    wait_for_end(array, gather)
    assert cluster.is_equal_to(reference)
    assert json.loads((run / "density/test/shards.json").read_text())["count"] == 2


def test_shards_that_failed_are_submitted_again_by_the_line_that_status_prints(
    cluster: Cluster, reference: bytes
) -> None:
    is_first_try = '[[ ${SLURM_ARRAY_TASK_ID-} =~ ^[37]$ ]] && mkdir "failed-$SLURM_ARRAY_TASK_ID" 2> /dev/null'
    told = cluster.write("--submit", "--no-probe", before=fake_if(is_first_try, dies_at=1))
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
