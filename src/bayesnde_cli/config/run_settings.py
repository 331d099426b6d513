"""Settings that stages have in common: seed, device and threads."""

from typing import Any

from bayesnde_cli.config.fields import setting


def seed_setting() -> Any:
    return setting(None, "Seed of this stage; the run's if not given.", minimum=0, maximum=2**32 - 1, panel="Run")


def device_setting() -> Any:
    return setting(
        "auto", "Where to compute; auto: a GPU if there is one.", choices=("auto", "cpu", "gpu"), panel="Run",
        is_technical=True,
    )  # fmt: skip


def threads_setting() -> Any:
    return setting(None, "Threads of the CPU; all cores if not given.", minimum=1, panel="Run", is_technical=True)
