"""Neural densities against closed forms, and their training: reproducible, resumable, no longer than rows allow."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bayesnde_cli.competitors import Method, Tables, fit_competitor, make_neural, plain
from bayesnde_cli.competitors.plain import Fitted
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import NEURAL_BASELINES
from normal_rows import COVARIANCE, FEW, normal, with_classes
from stopping_keeper import Stopped, StoppingKeeper

NORMAL = stats.multivariate_normal([0.0, 0.0], COVARIANCE)
# Shares of the steps that are enough here, so that one core is done with all of them in half a minute.
SHARES = {"made": 0.08, "maf": 0.03, "realnvp": 0.03, "nsf": 0.03, "cfm": 0.05, "resflow": 0.1}
AXIS = np.linspace(-5.0, 5.0, 61)
GRID = Rows(np.stack(np.meshgrid(AXIS, AXIS), axis=-1).reshape(-1, 2))

pytestmark = pytest.mark.usefixtures("small_networks")


@pytest.fixture(scope="module")
def trained() -> dict[str, Fitted]:
    return {}


def _trained(name: str, trained: dict[str, Fitted]) -> Fitted:
    """A fit to correlated normal rows, once for all tests."""
    if name not in trained:
        trained[name] = make_neural(name, SHARES[name])(normal(5000, 1), normal(1000, 2), 7)
    return trained[name]


def _integral(score: np.ndarray) -> float:
    return float(np.exp(score).sum() * (AXIS[1] - AXIS[0]) ** 2)


@pytest.mark.parametrize("name", NEURAL_BASELINES)
def test_a_flow_comes_near_the_closed_form_and_integrates_to_one(name: str, trained: dict[str, Fitted]) -> None:
    rows = normal(2000, 3)
    truth = NORMAL.logpdf(rows.x)
    loss = truth.mean() - _trained(name, trained).score(rows).mean()
    # The 5 parameters of a Gaussian, estimated from 5,000 rows, lose 0.0005 on average; a network that is trained
    # briefly a few hundredths, the residual flow of four blocks a tenth.
    assert -0.01 < loss < 0.15
    # The control: the best density without the correlation loses -log(1 - 0.8²) / 2.
    assert truth.mean() - stats.norm.logpdf(rows.x).sum(axis=1).mean() == pytest.approx(0.51, abs=0.05)
    # The grid's own error is below 1e-4 for the true density; a flow has a few kinks.
    assert _integral(_trained(name, trained).score(GRID)) == pytest.approx(1.0, abs=0.01)


def test_the_control_without_the_divergence_it_does_not(
    trained: dict[str, Fitted], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bayesnde_cli.competitors.neural import FlowMatching

    fitted, velocity = _trained("cfm", trained), FlowMatching._velocity

    def without_divergence(self: FlowMatching, *given: Any) -> tuple[Any, Any]:
        v, divergence = velocity(self, *given)
        return v, 0.0 * divergence

    monkeypatch.setattr(FlowMatching, "_velocity", without_divergence)
    assert abs(_integral(fitted.score(GRID)) - 1.0) > 0.1


def test_the_divergence_is_the_trace_of_the_jacobian() -> None:
    import torch

    from bayesnde_cli.competitors.neural import FlowMatching

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        field, x, context = FlowMatching(4, 2), torch.randn(5, 4), torch.eye(2)[[0, 1, 0, 1, 1]]
    divergence = field._velocity(x, 0.3, context)[1].detach()
    for row in range(5):
        jacobian = torch.autograd.functional.jacobian(
            lambda cells, row=row: field._velocity(cells[None], 0.3, context[row : row + 1])[0][0], x[row]
        )
        assert divergence[row].item() == pytest.approx(torch.trace(jacobian).item(), abs=1e-5)


def _steep_residual_flow(p: int) -> tuple[Any, Any]:
    """A flow whose last layers do not begin near zero, where determinants hardly count; and rows."""
    import torch

    from bayesnde_cli.competitors.neural import ResidualFlow

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        flow, x = ResidualFlow(p, 0), torch.randn(64, p)
    with torch.no_grad():
        for block in flow.blocks:
            block.net[5].weight.mul_(1000.0)
        flow.log_scale += 0.1
    flow.before_scoring()
    return flow, x


def _map(flow: Any, x: Any) -> Any:
    for index, block in enumerate(flow.blocks):
        x = flow._scale(index, x + block(x))
    return x


def test_the_determinant_of_a_residual_flow_is_that_of_the_whole_map() -> None:
    import torch

    flow, x = _steep_residual_flow(3)
    found = flow.log_density(x, None)
    base = -0.5 * (_map(flow, x).double() ** 2 + np.log(2 * np.pi)).sum(dim=1)
    for row in range(4):
        jacobian = torch.autograd.functional.jacobian(lambda cells: _map(flow, cells[None])[0], x[row])
        exact = torch.linalg.slogdet(jacobian).logabsdet
        assert (found - base)[row].item() == pytest.approx(exact.item(), abs=1e-4)
        assert abs(exact.item()) > 0.05  # the control: it is not 0


def test_the_random_series_has_the_gradient_of_the_exact_determinants_on_average() -> None:
    import torch

    flow, x = _steep_residual_flow(2)
    random = torch.Generator().manual_seed(2)
    weight = flow.blocks[0].net[5].weight

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(flow.loss(x, None, random), weight)[0]

    def mean_at(step: float, *, is_whole: bool = True) -> float:
        with torch.no_grad():
            weight.add_(step * direction)
            mean = flow.log_density(x, None).mean() if is_whole else -0.5 * (_map(flow, x) ** 2).sum(dim=1).mean()
            weight.sub_(step * direction)
        return -float(mean)

    direction = torch.nn.functional.normalize(gradient(), dim=None)
    found = torch.stack([(gradient() * direction).sum() for _ in range(300)])
    error = float(found.std()) / len(found) ** 0.5
    exact = (mean_at(0.01) - mean_at(-0.01)) / 0.02
    assert abs(float(found.mean()) - exact) < 4.0 * error + 1e-3  # 1e-3: differences in float32
    # The control: without the determinants it is another gradient.
    without = (mean_at(0.01, is_whole=False) - mean_at(-0.01, is_whole=False)) / 0.02
    assert abs(float(found.mean()) - without) > 8.0 * error + 1e-3


def _two_classes(n: int, seed: int, n_classes: int = 2) -> Rows:
    """Class 0 is narrow and low, class 1 is wide and high."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 2)) * (0.3 + 0.9 * classes[:, None]) + 2.0 * classes[:, None]
    return with_classes(x, classes, n_classes)


def _log_two_classes(rows: Rows, classes: np.ndarray) -> np.ndarray:
    return stats.norm.logpdf(rows.x, 2.0 * classes[:, None], 0.3 + 0.9 * classes[:, None]).sum(axis=1)


@pytest.mark.parametrize(("name", "share"), [("made", 0.15), ("cfm", 0.05)])
def test_a_conditional_flow_knows_the_class(name: str, share: float) -> None:
    rows = _two_classes(1000, 3)
    tables = Tables(_two_classes(4000, 1), _two_classes(800, 2), rows).standardise()
    fitted = make_neural(name, share)(tables.train, tables.validation, 0)
    assert fitted.chosen["fit"] == "conditional"
    found = fitted.score(tables.evaluated) + tables.evaluated.log_jacobian
    classes = rows.classes
    assert classes is not None
    assert _log_two_classes(rows, classes).mean() - found.mean() < 0.2  # briefly trained; one for both loses 0.65
    swapped = with_classes(tables.evaluated.x, 1 - classes)
    truth = _log_two_classes(rows, classes) - _log_two_classes(rows, 1 - classes)
    other = found - fitted.score(swapped) - tables.evaluated.log_jacobian
    is_low = classes == 0  # these are in the tail of the wide class, where a network is off by a nat or so
    assert other[is_low].mean() == pytest.approx(truth[is_low].mean(), abs=2.0)
    assert other[~is_low].mean() > 5.0


def test_a_residual_flow_has_an_expert_for_each_class_and_a_class_without_rows_has_no_density() -> None:
    tables = Tables(*(_two_classes(n, seed, 3) for seed, n in enumerate((400, 80, 50))))
    methods = {"resflow": Method(make_neural("resflow", FEW))}
    names = ("low", "high", "none")
    found = fit_competitor("resflow", {"file": tables}, seed=0, methods=methods, class_names=names)
    assert found.chosen["fit"] == "experts"
    assert set(found.chosen["classes"]) == {"low", "high"}
    assert np.isfinite(found.log_density).all()
    for name in ("resflow", "made"):
        fitted = make_neural(name, FEW)(tables.train, tables.validation, 0)
        assert np.isnan(fitted.score(with_classes(tables.evaluated.x, np.full(50, 2), 3))).all()


@pytest.mark.parametrize("name", NEURAL_BASELINES)
def test_the_same_seed_gives_the_same_numbers_and_far_rows_and_single_columns_work(name: str) -> None:
    import torch

    rows, train, validation = normal(50, 3), normal(500, 1), normal(100, 2)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    fits = [make_neural(name, FEW)(train, validation, seed) for seed in (1, 1, 2)]
    first, again, other = (fitted.score(rows) for fitted in fits)
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
    assert torch.equal(before, torch.random.get_rng_state())  # the global generator is left alone
    assert torch.get_num_threads() == threads
    # A row is scored alike whatever the others are.
    far = np.array([[30.0, -40.0], [0.0, 6.0], [5.0, -5.0]])
    both = fits[0].score(Rows(np.concatenate([rows.x, far])))
    np.testing.assert_allclose(both[:50], first, rtol=1e-5)
    assert np.isfinite(both).all()
    column = [Rows(np.ascontiguousarray(x[:, :1])) for x in (train.x, validation.x, far)]
    assert np.isfinite(make_neural(name, FEW)(column[0], column[1], 0).score(column[2])).all()


@pytest.mark.parametrize("name", NEURAL_BASELINES)
def test_an_interrupted_fit_resumes_to_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesnde_cli.competitors import neural as module

    checks: list[float] = []
    check = module._check

    def counted(*given: Any) -> float:
        checks.append(check(*given))
        return checks[-1]

    monkeypatch.setattr(module, "_check", counted)
    monkeypatch.setattr(module, "_BATCH_ROWS", 30)  # epochs end between checks
    length = replace(module.KINDS[name].length, steps=60, check_every=20)
    monkeypatch.setattr(module, "KINDS", {name: module.KINDS[name]._replace(length=length)})
    train, validation, rows = normal(200, 1), normal(60, 2), normal(40, 3)
    whole = make_neural(name)(train, validation, 1)
    n_checks = len(checks)
    monkeypatch.setattr(plain, "_SECONDS_BETWEEN", 0.0)
    keeper = StoppingKeeper()
    keeper.n_left = 1
    with pytest.raises(Stopped):
        make_neural(name, keeper=keeper)(train, validation, 1)
    keeper.n_left = None
    for n_left in (n_checks - 2, 0):  # neither the first, of fresh weights, nor the one before the stop; then none
        checks.clear()
        again = make_neural(name, keeper=keeper)(train, validation, 1)
        assert len(checks) == n_left
        assert again.chosen == whole.chosen
        assert np.array_equal(again.score(rows), whole.score(rows))
    # Another share, another seed and other rows are other fits.
    for own_train, own_validation, seed in ((train, validation, 1), (train, validation, 2), (rows, validation, 2)):
        make_neural(name, 0.05, keeper)(own_train, own_validation, seed)
    make_neural(name, 0.05, keeper)(train, rows, 2)
    assert len(keeper) == 5


@pytest.mark.parametrize(
    ("name", "n_rows", "share", "expected"),
    [
        ("nsf", 100, 1.0, (12, 2_000)),
        ("nsf", 684, 1.0, (24, 2_000)),  # two batches an epoch: the best weights of flows are those of a hundred steps
        ("nsf", 4_760, 1.0, (200, 2_000)),
        ("nsf", 4_760, 0.01, (60, 2_000)),
        ("cfm", 684, 1.0, (24, 5_000)),
        ("cfm", 50_000, 1.0, (500, 5_000)),
        ("resflow", 684, 1.0, (200, 2_000)),
    ],
)
def test_small_tables_have_more_frequent_checks(name: str, n_rows: int, share: float, expected: tuple) -> None:
    from bayesnde_cli.competitors.neural import KINDS

    length = KINDS[name].length.scale(share, n_rows)
    assert (length.check_every, length.patience) == expected
    assert tuple(KINDS) == NEURAL_BASELINES


def test_training_ends_by_patience_and_keeps_the_best_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty rows are soon overfitted: validation rows tell."""
    import torch

    from bayesnde_cli.competitors import neural as module

    made = module.KINDS["made"]
    length = module.Length(steps=3000, check_every=20, patience=60, most_epochs_unchecked=math.inf)
    monkeypatch.setattr(module, "KINDS", {"made": made._replace(length=length)})
    train, validation = normal(20, 1), normal(500, 2)
    fitted = make_neural("made")(train, validation, 0)
    assert fitted.chosen["steps"] == fitted.chosen["best_step"] + 60 < 3000
    # The control: after 400 more steps without a check, the weights are worse for validation rows.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = made.make(2, 0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(fitted.chosen["steps"] + 400):
        optimizer.zero_grad()
        network.loss(torch.from_numpy(train.x).float(), None, torch.Generator()).backward()
        optimizer.step()
    assert fitted.score(validation).mean() > module._check(network, (torch.from_numpy(validation.x).float(), None))
