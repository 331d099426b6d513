"""Settings: who decides, what is refused."""

from pathlib import Path

import pytest

from bayesnde_cli.errors import BadConfig
from bayesnde_cli.settings import preset_names, read_preset, resolve
from bayesnde_cli.settings.stage_settings import (
    STAGE_SETTINGS,
    DensitySettings,
    PosteriorSettings,
    PrepareSettings,
    RefineSettings,
    WarmstartSettings,
)


def _resolve(flags: dict | None = None, environ: dict | None = None, **places: object) -> PrepareSettings:
    return resolve(PrepareSettings, flags=flags or {}, environ=environ or {}, **places)  # type: ignore[arg-type]


def test_flag_beats_environment_beats_file_beats_preset_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[prepare]\nscale = "standard"\nseed = 3\n')
    environ = {"BAYESNDE_PREPARE_SCALE": "none"}
    assert PrepareSettings().scale == "auto"
    assert _resolve(preset="paper-bank").scale == "minmax"
    assert _resolve(preset="paper-bank", config_file=file).scale == "standard"
    assert _resolve(preset="paper-bank", config_file=file, environ=environ).scale == "none"
    top = _resolve({"scale": "marginal"}, environ, preset="paper-bank", config_file=file)
    assert top.scale == "marginal"
    # What nobody overrides comes from the place below.
    assert (top.seed, top.split_method) == (3, "tail")


def test_values_come_in_their_own_types_from_text_and_toml(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[prepare]\nsplit = [0.8, 0.1, 0.1]\ndrop-constant = true\ndrop = ["a", "b"]\n')
    from_file = _resolve(config_file=file)
    environ = {"BAYESNDE_PREPARE_SPLIT": "0.8, 0.1, 0.1", "BAYESNDE_PREPARE_DROP_CONSTANT": "yes"}
    from_environment = _resolve(environ=environ)
    for config in (from_file, from_environment):
        assert config.split == (0.8, 0.1, 0.1)
        assert config.drop_constant is True
    assert from_file.drop == ("a", "b")


def test_every_preset_resolves() -> None:
    assert {"default", "fast", "paper-bank"} <= set(preset_names())
    for name in preset_names():
        assert set(read_preset(name)) <= set(STAGE_SETTINGS)
        for config_class in STAGE_SETTINGS.values():
            assert isinstance(resolve(config_class, preset=name), config_class)


def test_the_paper_s_draws_are_those_of_its_densities() -> None:
    """So that `posterior --preset paper` makes what `density --preset paper` uses."""
    draws = resolve(PosteriorSettings, preset="paper")
    density = resolve(DensitySettings, preset="paper")
    assert draws.identity().items() <= density.identity().items()
    assert (draws.chains, draws.warm_up, draws.draws, draws.leapfrogs, draws.step_size) == (4, 800, 400, 10, 0.003)
    assert "keep_draws" not in density.identity()


# The paper's table of weights for the real data sets: z; alpha, var, corr of the warm start; var, corr, PP after it.
@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("bank", (8, 0.1, 0.01, 0.3, 0.0, 0.3, 1000.0)),
        ("parktele", (8, 0.0, 0.0, 0.3, 0.0, 0.3, 1000.0)),
        ("pendigits10", (8, 0.0, 0.0, 0.3, 0.01, 0.3, 0.0)),
        ("vehicle", (6, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
        ("eegeye", (5, 0.1, 0.01, 0.0, 0.01, 0.0, 0.0)),
    ],
)
def test_the_presets_of_the_real_data_sets_hold_the_paper_s_weights(name: str, table: tuple) -> None:
    warm, refined = resolve(WarmstartSettings, preset=f"paper-{name}"), resolve(RefineSettings, preset=f"paper-{name}")
    weights = (warm.squared_variance_weight, warm.log_variance_weight, warm.correlation_weight)
    after = (refined.log_variance_weight, refined.correlation_weight, refined.mmd_weight)
    assert (warm.latent_dim, *weights, *after) == table
    assert (warm.objective, warm.egm_steps, warm.select) == ("egm", 22000, "rank")
    assert (warm.reconstruction_x_weight, warm.reconstruction_z_weight, warm.marginal_mmd_weight) == (3.0, 1.0, 0.0)
    assert (refined.latent_update, refined.epochs, refined.learning_rate) == ("map", 2000, 0.005)
    assert (refined.schedule, refined.select) == ("constant", "plug-in")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[prepair]\nscale = 'none'\n",
            "error: FILE has an unknown table or key 'prepair'\n  tables: TABLES\nhint: did you mean 'prepare'?",
        ),
        (
            "seed = 3\n",
            "error: FILE has an unknown table or key 'seed'\n  tables: TABLES\n"
            "hint: put settings under their stage's table",
        ),
        (
            "[prepare]\nseed = 1.5\n",
            "error: FILE: prepare.seed must be a whole number\n  found: 1.5\n"
            "hint: Seed of the run: splits, noise, and every later stage.",
        ),
        (
            "[prepare]\nscale = 3\n",
            "error: FILE: prepare.scale must be a word\n  found: 3\nhint: Scaling of the columns: marginal maps each "
            "through its own distribution to a standard normal; logit is for pixels, 0 to 255 with noise U(0, 1); auto "
            "takes logit for images, else marginal, unless a mixture fits the validation rows better with standard.",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_nearest_match(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(BadConfig) as caught:
        _resolve(config_file=file)
    tables = ", ".join(f"[{name}]" for name in STAGE_SETTINGS)
    assert str(caught.value) == message.replace("FILE", str(file)).replace("TABLES", tables)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"seed": "-1"},
            "error: --seed is too small\n  found: -1, smallest: 0\n"
            "hint: Seed of the run: splits, noise, and every later stage.",
        ),
        (
            {"seed": str(2**32)},
            "error: --seed is too large\n  found: 4294967296, largest: 4294967295\n"
            "hint: Seed of the run: splits, noise, and every later stage.",
        ),
        (
            {"max_robust_z": "nan"},
            "error: --max-robust-z must be a number\n  found: 'nan'\n"
            "hint: Drop rows with |x - median| / MAD above this value in any feature.",
        ),
        (
            {"split_seeds": "1"},
            "error: prepare.split_seeds must be two whole numbers\n  found: 1\n"
            "hint: for instance --split-seeds 42,1051",
        ),
    ],
)
def test_a_wrong_flag_is_refused(flags: dict, message: str) -> None:
    with pytest.raises(BadConfig) as caught:
        _resolve(flags)
    assert str(caught.value) == message


def test_an_unknown_environment_variable_of_a_stage_is_refused() -> None:
    with pytest.raises(BadConfig, match="did you mean 'BAYESNDE_PREPARE_SCALE'"):
        _resolve(environ={"BAYESNDE_PREPARE_SCLE": "none"})
    assert _resolve(environ={"BAYESNDE_RUN": "elsewhere"}) == PrepareSettings()


def test_an_empty_word_takes_back_what_a_preset_says() -> None:
    assert _resolve(preset="paper-vehicle").condition == "c19"
    assert _resolve({"condition": ""}, preset="paper-vehicle").condition is None
    assert _resolve({"features": [""]}, preset="paper-parktele").features == ("",)
    assert _resolve(environ={"BAYESNDE_PREPARE_FEATURES": ""}, preset="paper-parktele").features == ()


@pytest.mark.parametrize(
    "content",
    [b"[prepare\n", b"\xff", b"a = " + b"9" * 5000, b"a = " + b"[" * 5000],
    ids=["open", "bytes", "long", "deep"],
)
def test_a_file_that_is_not_toml_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(BadConfig) as caught:
        _resolve(config_file=tmp_path / "bad.toml")
    assert caught.value.what == f"config file {tmp_path / 'bad.toml'} cannot be read"
    assert caught.value.hint == "it must be a TOML file, UTF-8"
