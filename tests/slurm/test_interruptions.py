"""Jobs that a real SLURM stops: out of time, cancelled. Nothing is lost, and only what ran out of time comes back."""

from slurm_cluster import Cluster, asked, fake_if, states, wait_for_end, wait_until


def _slow_at_first(task: int) -> str:
    """A setup that has a task take its time until it is started again: SLURM counts restarts."""
    condition = f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] && [ "${{SLURM_ARRAY_TASK_ID-}}" = {task} ]'
    return fake_if(condition, n_quick=1, seconds=30.0) + 'echo "start ${SLURM_RESTART_COUNT:-0}"'


def test_a_task_that_is_told_that_its_time_is_over_goes_back_into_the_queue_and_ends_well(
    cluster: Cluster, reference: bytes
) -> None:
    cluster.write("--shards", "2", before=_slow_at_first(2))
    array = cluster.submit()
    gather = cluster.submit("gather", f"--dependency=afterok:{array}")
    wait_until(lambda: "block-00001.parquet" in cluster.blocks(), "the first block of the second shard")
    asked("scancel", "--batch", "--signal=USR1", f"{array}_2")  # as --signal=B:USR1 has it: the shell alone
    wait_for_end(array, gather)
    assert (states(array), states(gather)) == ({"COMPLETED"}, {"COMPLETED"})
    log = (cluster.run / f"slurm/test/log/array-{array}_2.log").read_text()
    assert [line for line in log.splitlines() if line.startswith(("start ", "error: "))] == [
        "start 0", "error: stopped by SIGUSR1", "start 1",
    ]  # fmt: skip
    assert "start 1" not in (cluster.run / f"slurm/test/log/array-{array}_1.log").read_text()  # that task alone
    assert cluster.is_equal_to(reference)


def test_slurm_itself_tells_a_task_before_its_time_is_over(cluster: Cluster, reference: bytes) -> None:
    """A minute of time, and a signal 15 s before its end or up to 30 s earlier: after 15 s at the earliest."""
    cluster.write("--shards", "1", before=_slow_at_first(1))
    array = cluster.submit("array", "--time=1", "--signal=B:USR1@15")
    cluster.gather(array)
    log = cluster.logs()
    assert "error: stopped by SIGUSR1\n" in log
    assert "start 1\n" in log
    assert "DUE TO TIME LIMIT" not in log
    assert (states(array), cluster.is_equal_to(reference)) == ({"COMPLETED"}, True)


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
