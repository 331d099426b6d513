"""Settings of the stages: what is declared, recorded and filled in, and which combinations are refused."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from bayesnde_cli.errors import BadConfig
from bayesnde_cli.runs.layout import STAGES
from bayesnde_cli.settings import resolve
from bayesnde_cli.settings.declare import GROUPS, StageSettings, field_help, field_kind
from bayesnde_cli.settings.stage_settings import (
    IMAGES,
    LEARNING_RATES,
    MANY_ROWS,
    MOST_MAPPED_CLASSES,
    NEURAL_BASELINES,
    RECIPES,
    SMALL_TABLE_ROWS,
    STAGE_SETTINGS,
    TABLE,
    DensitySettings,
    EvaluateSettings,
    PosteriorSettings,
    PrepareSettings,
    RefineSettings,
    WarmstartSettings,
)

EVERY = pytest.mark.parametrize("settings", STAGE_SETTINGS.values(), ids=STAGE_SETTINGS.keys())
COMMANDS = ("prepare", "fit", "warmstart", "refine", "posterior", "density", "evaluate")


# Declared.


def test_the_list_of_stages_is_that_of_their_settings() -> None:
    assert list(STAGE_SETTINGS) == [stage.name for stage in STAGES]


def test_the_list_of_commands_is_shown_without_pydantic() -> None:
    code = "import sys; from bayesnde_cli.cli.main import run; run(['--help']); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"


@EVERY
def test_every_setting_has_one_plain_sentence_and_a_default_within_its_limits(settings: type[StageSettings]) -> None:
    settings.model_validate({name: field.default for name, field in settings.model_fields.items()})
    for name, field in settings.model_fields.items():
        help = field_help(field)
        assert re.fullmatch(r"[A-Z].*[a-z0-9)'x]\.", help.text), name
        assert not re.search(r"[.] [A-Z]", help.text), f"{name}: more than one sentence"
        assert help.group in GROUPS
        assert field_kind(field).element in (str, int, float, bool)


def test_the_kind_of_a_setting_is_read_from_its_annotation() -> None:
    prepare, evaluate = PrepareSettings.model_fields, EvaluateSettings.model_fields
    assert field_kind(prepare["features"]) == (str, True, ())
    assert field_kind(prepare["split_seeds"]) == (int, True, ())
    assert field_kind(prepare["max_robust_z"]) == (float, False, ())
    assert field_kind(prepare["decimal"]) == (str, False, (".", ","))
    assert field_kind(evaluate["baseline"]) == (str, True, (*NEURAL_BASELINES, "roundtrip"))
    assert field_kind(DensitySettings.model_fields["seed"]) == (int, False, ())


def test_help_shows_defaults_and_those_that_depend_on_the_data() -> None:
    def shown(settings: type[StageSettings], name: str) -> str:
        return field_help(settings.model_fields[name]).default

    assert shown(PrepareSettings, "split") == "0.81,0.09,0.1"
    assert shown(PrepareSettings, "delimiter") == "detected"
    assert (shown(PrepareSettings, "drop"), shown(PrepareSettings, "drop_constant")) == ("", "")
    assert shown(EvaluateSettings, "baselines") == "on"
    assert shown(DensitySettings, "proposal_draws") == "10,000; images: 2,000"
    assert shown(WarmstartSettings, "width") == "by --recipe: 128 small, 256 medium, 256 large; images 32"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_setting_under_its_group_after_the_command_s_own_options(
    bayesnde: Callable, command: str
) -> None:
    page = bayesnde(command, "--help").out
    settings = STAGE_SETTINGS["prepare" if command == "fit" else command]
    headings = [line[:-1] for line in page.splitlines() if re.fullmatch(r"[A-Z][\w ]+:", line)]
    groups = {field_help(field).group for field in settings.model_fields.values()}
    assert [name for name in headings if name != "Arguments"] == [
        "Options",
        *(name for name in GROUPS if name in groups),
    ]
    sections = dict(zip(headings, re.split(r"^[A-Z][\w ]+:\n", page, flags=re.MULTILINE)[1:], strict=True))
    for name, field in settings.model_fields.items():
        assert f"  --{name.replace('_', '-')}" in sections[field_help(field).group]
    assert "  --run DIR" in sections["Options"]


# Recorded.


def test_what_is_recorded_are_json_values_and_the_identity_leaves_out_technical_settings() -> None:
    settings = DensitySettings(seed=3, threads=2, keep_draws=True)
    recorded = settings.as_dict()
    assert list(recorded) == list(DensitySettings.model_fields)
    assert DensitySettings(**recorded) == settings
    assert set(recorded) - set(settings.identity()) == {"device", "threads", "keep_draws"}
    assert PrepareSettings().as_dict()["split"] == [0.81, 0.09, 0.10]


def test_settings_are_frozen_and_can_be_keys() -> None:
    settings = DensitySettings(escalations=0)
    with pytest.raises(ValidationError, match="frozen"):
        settings.escalations = 1
    assert {settings: 1}[DensitySettings(escalations=0)] == 1
    assert settings.model_copy(update={"escalations": 2}) == DensitySettings()


def test_an_unknown_or_wrong_value_is_refused_in_python_too() -> None:
    for values in ({"chain": 4}, {"chains": 0}, {"metric": "round"}, {"draws": 4.5}, {"step_size": float("nan")}):
        with pytest.raises(ValidationError):
            DensitySettings(**values)


# Filled in.


@pytest.mark.parametrize(("are_images", "defaults"), [(False, TABLE), (True, IMAGES)])
def test_scoring_takes_blocks_and_draws_from_the_kind_of_data(are_images: bool, defaults: dict) -> None:
    found = DensitySettings().with_defaults(are_images=are_images)
    names = ("block_rows", "pilot_draws", "proposal_draws", "importance_draws")
    assert [getattr(found, name) for name in names] == [defaults[name] for name in names]
    assert found.model_copy(update=dict.fromkeys(names)) == DensitySettings()  # nothing else changes
    assert PosteriorSettings().with_defaults(are_images=are_images).block_rows == defaults["block_rows"]
    given = DensitySettings(block_rows=3, pilot_draws=0, proposal_draws=10, importance_draws=64)
    assert given.with_defaults(are_images=are_images) == given


@pytest.mark.parametrize(("n_rows", "recipe"), [(SMALL_TABLE_ROWS - 1, "small"), (SMALL_TABLE_ROWS, "medium")])
def test_where_nothing_is_tried_few_rows_get_small_networks_and_weight_decay(n_rows: int, recipe: str) -> None:
    found, defaults = WarmstartSettings().with_defaults(n_rows), TABLE | RECIPES[recipe]
    names = ("width", "depth", "weight_decay", "validation_rows", "generated_rows", "checks")
    assert [getattr(found, name) for name in names] == [defaults[name] for name in names]
    assert found.learning_rate == LEARNING_RATES["elbo"]
    assert RefineSettings().with_defaults(n_rows).weight_decay == defaults["weight_decay"]
    # Nothing else changes.
    assert found.model_copy(update=dict.fromkeys((*names, "learning_rate"))) == WarmstartSettings()


def test_a_named_recipe_fills_in_what_is_not_given_and_the_paper_s_objectives_learn_slowly() -> None:
    found = WarmstartSettings(recipe="large", width=7, objective="egm").with_defaults(10)
    assert (found.width, found.depth, found.weight_decay) == (7, RECIPES["large"]["depth"], 0.0)
    assert found.learning_rate == RefineSettings(latent_update="map").with_defaults().learning_rate == 1e-3
    assert RefineSettings().with_defaults().learning_rate == LEARNING_RATES["importance"]
    assert RefineSettings().with_defaults(are_images=True).learning_rate == 1e-3


def test_two_recipes_are_tried_unless_there_is_nothing_to_choose() -> None:
    found = WarmstartSettings(weight_decay=0.5).candidates(MANY_ROWS - 1, are_images=False)
    assert list(found) == ["small", "large"]
    assert [own.width for own in found.values()] == [RECIPES[name]["width"] for name in found]
    assert {own.weight_decay for own in found.values()} == {0.5}  # what is given stays
    assert list(WarmstartSettings().candidates(MANY_ROWS, are_images=False)) == ["medium", "large"]
    for settings in ({"recipe": "small"}, {"width": 9}, {"depth": 1}, {"objective": "egm"}):
        given = WarmstartSettings(**settings)
        assert list(given.candidates(100, are_images=False).values()) == [given]
    assert len(WarmstartSettings().candidates(100, are_images=True)) == 1


def test_images_have_the_paper_s_networks_and_latents_however_few_they_are() -> None:
    found = WarmstartSettings().with_defaults(100, are_images=True)
    assert (found.width, found.latent_dim, found.weight_decay, found.class_maps) == (32, 10, 0.0, False)
    assert RefineSettings().with_defaults(100, are_images=True).validation_rows == found.validation_rows == 128
    for n_classes, has_maps in ((1, True), (MOST_MAPPED_CLASSES, True), (MOST_MAPPED_CLASSES + 1, False)):
        assert WarmstartSettings().with_defaults(100, are_images=True, n_classes=n_classes).class_maps is has_maps


def test_given_values_stay() -> None:
    networks: dict[str, Any] = {"width": 7, "depth": 3, "weight_decay": 0.0, "latent_dim": 4, "class_maps": False}
    given = WarmstartSettings(**networks, validation_rows=9, generated_rows=99, checks=2, learning_rate=0.5)
    assert given.with_defaults(100) == given.with_defaults(100, are_images=True, n_classes=2) == given


@pytest.mark.parametrize("preset", ["paper-vehicle", "paper-odds", "paper-bank", "paper-gmm-low"])
def test_the_paper_s_recipes_have_its_networks_whatever_the_rows(preset: str) -> None:
    warmstart = resolve(WarmstartSettings, preset=preset).with_defaults(100)
    refine = resolve(RefineSettings, preset=preset).with_defaults(100)
    assert (warmstart.width, warmstart.depth, refine.weight_decay) == (256, 5, 0.0)


# Refused.


def test_settings_that_do_not_apply_to_the_data_are_refused() -> None:
    fast_images = resolve(WarmstartSettings, preset="fast-images")
    fast_images.check_data(3, are_images=True)
    assert fast_images.with_defaults(100, are_images=True, n_classes=3).width == 16
    with pytest.raises(BadConfig) as caught:
        resolve(WarmstartSettings, preset="fast").check_data(3, are_images=True)
    assert str(caught.value) == (
        "error: the depth of networks for images is fixed\n  depth: 3\n"
        "hint: leave out --depth; --width sets the number of channels; for --preset fast use fast-images"
    )
    with pytest.raises(BadConfig, match="--class-maps needs images and a condition"):
        WarmstartSettings(class_maps=True).check_data(3, are_images=False)


def test_contradictions_are_refused_when_all_sources_are_merged() -> None:
    assert resolve(RefineSettings, flags={"mmd_weight": "2"}, preset="paper-vehicle").mmd_weight == 2.0
    with pytest.raises(BadConfig) as caught:
        resolve(RefineSettings, flags={"mmd_weight": "2"})
    assert str(caught.value) == (
        "error: the importance-weighted bound has no regularisers\n  found: mmd_weight = 2\n"
        "hint: leave them out or set them to 0, or choose --latent-update posterior or map"
    )
    weights = {name: "0" for name in WarmstartSettings.model_fields if name.endswith("_weight")}
    assert resolve(WarmstartSettings, flags=weights).objective == "elbo"
    with pytest.raises(BadConfig) as caught:
        resolve(WarmstartSettings, flags=weights | {"objective": "egm"})
    assert str(caught.value) == (
        "error: the objective egm has no term left\n  found: all 10 weights are 0\n"
        "hint: give one of them a weight, or choose --objective elbo"
    )
