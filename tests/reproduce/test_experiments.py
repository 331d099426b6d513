"""The settings of an arm: the paper's protocol of the data for all, its training for its own recipe alone."""

from dataclasses import replace

import pytest

from bayesnde_cli.errors import BadConfig
from bayesnde_cli.reproduce.experiments import DEFAULT, EXPERIMENTS, PAPER, Reproduced, Request, arm_settings, list_arms
from bayesnde_cli.runs.blocks import Shard
from bayesnde_cli.settings import read_preset
from bayesnde_cli.settings.declare import StageSettings
from bayesnde_cli.settings.stage_settings import (
    DensitySettings,
    EvaluateSettings,
    PipelineSettings,
    PrepareSettings,
    RefineSettings,
    WarmstartSettings,
)
from made_results import result_of

ODDS = ("shuttle", "cardio", "pendigits")
WHOLE = [name for name, experiment in EXPERIMENTS.items() if DEFAULT in experiment.recipes]


def _settings(name: str, recipe: str, *more: str, seed: int = 5, test_rows: int | None = 500) -> PipelineSettings:
    experiment = EXPERIMENTS[name]
    return arm_settings(experiment, experiment.recipes[recipe], seed=seed, test_rows=test_rows, more=more)


def _differences(config: StageSettings, plain: StageSettings) -> dict[str, object]:
    names = type(plain).model_fields
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(plain, name)}


def _table(preset: str, stage: str) -> dict[str, object]:
    """What a preset says of a stage, as the configuration has it."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in read_preset(preset)[stage].items()
    }


@pytest.mark.parametrize("name", WHOLE)
def test_the_default_recipe_trains_and_scores_with_the_defaults(name: str) -> None:
    found = _settings(name, DEFAULT)
    for config, plain in zip(found[1:4], (WarmstartSettings(), RefineSettings(), DensitySettings()), strict=True):
        assert _differences(config, plain) == {"seed": 5}
    assert _differences(found.evaluate, EvaluateSettings()) == {"seed": 5, "baselines": False, "accuracy_rows": 0}


@pytest.mark.parametrize("name", ODDS)
def test_the_recipe_for_outliers_is_blurred_as_its_preset_says(name: str) -> None:
    found = _settings(name, "outliers", test_rows=None)
    assert found.prepare.scale == read_preset("outliers")["prepare"]["scale"] == "standard"
    assert _differences(found.warmstart, WarmstartSettings()) == {"seed": 5}
    assert _differences(found.refine, RefineSettings()) == {"seed": 5}
    assert _differences(found.density, DensitySettings()) == {"seed": 5, "blur": 0.5}


@pytest.mark.parametrize("name", WHOLE)
def test_every_recipe_has_the_data_protocol_of_the_paper_but_for_our_scaling(name: str) -> None:
    preset = _table(EXPERIMENTS[name].preset, "prepare")
    protocol = {key: value for key, value in preset.items() if value != getattr(PrepareSettings(), key)}
    scaling = {"scale", "scale_on"}
    assert _differences(_settings(name, PAPER).prepare, PrepareSettings()) == protocol | {"test_rows": 500}
    ours = _settings(name, DEFAULT)
    found = _differences(ours.prepare, PrepareSettings()) | {"scale": ours.prepare.scale}
    assert {key: value for key, value in found.items() if key not in scaling} == {
        key: value for key, value in protocol.items() if key not in scaling
    } | {"test_rows": 500}
    assert (ours.prepare.scale, ours.prepare.scale_on) == ("logit" if name == "mnist" else "auto", "train")


@pytest.mark.parametrize("name", WHOLE)
def test_the_paper_s_recipe_has_its_training_and_its_scoring(name: str) -> None:
    experiment, found = EXPERIMENTS[name], _settings(name, PAPER)
    more = [entry.partition("=")[0].removeprefix("warmstart.") for entry in experiment.recipes[PAPER].settings]
    for config, table in (
        (found.warmstart, _table(experiment.preset, "warmstart")),
        (found.refine, _table(experiment.preset, "refine")),
        (found.density, _table("paper-mnist" if name == "mnist" else "paper", "density")),
    ):
        wanted = {key: value for key, value in table.items() if config.stage != "warmstart" or key not in more}
        assert {key: getattr(config, key) for key in wanted} == wanted
        assert set(_differences(config, type(config)())) <= {*table, "seed", *more}


def test_seeds_reach_the_model_and_leave_the_rows_alone() -> None:
    one, other = _settings("bank", DEFAULT, seed=1), _settings("bank", DEFAULT, seed=2)
    assert [config.seed for config in one] == [42, 1, 1, 1, 1]  # 42 is the protocol's
    assert one.prepare == other.prepare
    for config, twin in zip(one[1:], other[1:], strict=True):
        assert _differences(config, twin) == {"seed": 1}


def test_the_environment_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = _settings("involute", DEFAULT)
    for name in ("PREPARE_SEED", "WARMSTART_EPOCHS", "REFINE_EPOCHS", "DENSITY_DRAWS", "EVALUATE_TYPICALITY_ROWS"):
        monkeypatch.setenv(f"BAYESNDE_{name}", "7")
    assert _settings("involute", DEFAULT) == calm


def test_the_user_s_settings_win_over_recipe_preset_and_seed() -> None:
    more = ("warmstart.egm_steps=10", "density.chains=2", "prepare.scale=none", "refine.seed=9", "prepare.test_rows=30")
    found = _settings("involute", PAPER, *more, "evaluate.typicality_rows=60")
    assert (found.warmstart.egm_steps, found.density.chains, found.prepare.scale) == (10, 2, "none")
    assert (found.refine.seed, found.warmstart.seed, found.prepare.test_rows) == (9, 5, 30)
    assert found.evaluate.typicality_rows == 60
    with pytest.raises(BadConfig, match="--set has an unknown"):
        _settings("involute", PAPER, "density.drws=2")


@pytest.mark.parametrize("name", ["ablation-2d", "ablation-15d"])
def test_every_ablation_differs_from_the_whole_in_what_its_name_says(name: str) -> None:
    changed = {
        "paper-no-warm-start": {"egm_steps": 1, "checks": 1},
        "paper-no-variance-term": {"log_variance_weight": 0.0},
        "default-no-warm-start": {"epochs": 1, "column_steps": 0},
        "paper-no-mmd": {"marginal_mmd_weight": 0.0, "joint_mmd_weight": 0.0},
        "paper-no-correlation": {"correlation_weight": 0.0},
        "default-no-columns": {"column_steps": 0},
        "default-standard": {},
    }
    for recipe in [recipe for recipe in EXPERIMENTS[name].recipes if recipe not in (DEFAULT, PAPER)]:
        found, whole = _settings(name, recipe), _settings(name, recipe.partition("-")[0])
        assert _differences(found.warmstart, whole.warmstart) == changed[recipe], recipe
        assert found[2:] == whole[2:]
        assert (found.prepare == whole.prepare) == (recipe != "default-standard")


def test_budgets_change_the_scoring_alone() -> None:
    for budget in (100, 200, 400, 800, 1600):
        found, whole = _settings("budget-sweep", f"budget-{budget}"), _settings("gmm-15", DEFAULT)
        assert found[:3] == whole[:3]
        assert found.density.chains * found.density.draws == budget
        assert (found.density.escalations, found.density.pilot_draws) == (0, 0)


@pytest.mark.parametrize("name", ["shuttle", "budget-sweep", "timing"])
def test_shards_are_disjoint_and_together_everything(name: str) -> None:
    experiment = EXPERIMENTS[name]
    methods = ("all",) if experiment.methods else ()
    asked = Request(recipes=("all",), methods=methods, seeds=(4, 5))
    arms = list_arms(experiment, asked)
    assert arms == [(arm, seed) for arm in (*experiment.recipes, *experiment.methods) for seed in (4, 5)]
    parts = [list_arms(experiment, replace(asked, shard=Shard(index, 3))) for index in (1, 2, 3)]
    assert sorted(arm for part in parts for arm in part) == sorted(arms)  # each once: no two arms are equal
    assert len(set(arms)) == len(arms)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_arms_are_those_that_are_named_each_once() -> None:
    involute, sweep = EXPERIMENTS["involute"], EXPERIMENTS["budget-sweep"]
    assert list_arms(involute, Request()) == [("default", 0)]
    assert list_arms(involute, Request(methods=("maf",))) == [("maf", 0)]
    asked = Request(recipes=("paper", "paper"), methods=("maf", "nsf", "maf"), seeds=(3, 1, 3))
    assert list_arms(involute, asked) == [(name, seed) for name in ("paper", "maf", "nsf") for seed in (3, 1)]
    assert list_arms(sweep, Request()) == [(name, seed) for name in sweep.recipes for seed in (0, 1, 2)]


def test_a_time_is_shown_next_to_the_paper_s_time() -> None:
    header, line = str(Reproduced(EXPERIMENTS["timing"], [result_of("bank", "paper")])).splitlines()
    assert header.split()[:3] == ["timing", "seed", "seconds"]
    assert line.split()[:4] == ["paper", "0", "72.00", "3852.00"]
