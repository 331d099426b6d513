"""Neural densities against closed forms; and that every competitor has the same choice of scaling, and no other say."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from bayesnde_cli.config import NEURAL_BASELINES
from bayesnde_cli.evaluation.baselines import COMPETITORS, DENSITIES, DETECTORS, Method, Part, Parts, competitor
from bayesnde_cli.evaluation.baselines.fitted import FittedParts
from bayesnde_cli.evaluation.baselines.neural import neural
from normal_rows import COVARIANCE, FEW, normal

NORMAL = stats.multivariate_normal([0.0, 0.0], COVARIANCE)
# Shares of the steps that are enough here, so that a core is done with all of them in half a minute.
SHARES = {"made": 0.08, "maf": 0.03, "realnvp": 0.03, "nsf": 0.03, "cfm": 0.05, "resflow": 0.1}

pytestmark = pytest.mark.usefixtures("small_networks")


@pytest.fixture(scope="module")
def trained() -> dict[str, FittedParts]:
    return {}


def _trained(name: str, trained: dict[str, FittedParts]) -> FittedParts:
    """A fit to correlated normal rows, once for all tests."""
    if name not in trained:
        trained[name] = neural(name, share=SHARES[name])(normal(5000, 1), normal(1000, 2), 7)
    return trained[name]


@pytest.mark.parametrize("name", NEURAL_BASELINES)
def test_a_flow_comes_near_the_closed_form(name: str, trained: dict[str, FittedParts]) -> None:
    rows = normal(2000, 3)
    truth = NORMAL.logpdf(rows.cells)
    loss = truth.mean() - _trained(name, trained).score(rows).mean()
    # An estimate of 5 parameters from 5,000 rows loses 0.0005 in the mean; a network that was trained briefly
    # a few hundredths, the residual flow of four blocks a tenth.
    assert -0.01 < loss < 0.15
    # The control: the best density without the correlation loses -log(1 - 0.8²) / 2.
    assert truth.mean() - stats.norm.logpdf(rows.cells).sum(axis=1).mean() == pytest.approx(0.51, abs=0.05)


AXIS = np.linspace(-5.0, 5.0, 61)
GRID = Part(np.stack(np.meshgrid(AXIS, AXIS), axis=-1).reshape(-1, 2))


def _integral(score: np.ndarray) -> float:
    return float(np.exp(score).sum() * (AXIS[1] - AXIS[0]) ** 2)


@pytest.mark.parametrize("name", NEURAL_BASELINES)
def test_a_flow_integrates_to_one(name: str, trained: dict[str, FittedParts]) -> None:
    # The grid's own error is below 1e-4 for the true density; a flow has a few kinks.
    assert _integral(_trained(name, trained).score(GRID)) == pytest.approx(1.0, abs=0.01)


def test_the_control_without_the_divergence_it_does_not(
    trained: dict[str, FittedParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bayesnde_cli.evaluation.baselines.neural.flow_matching import FlowMatching

    fitted, velocity = _trained("cfm", trained), FlowMatching._velocity

    def without_divergence(self, *given):
        v, divergence = velocity(self, *given)
        return v, 0.0 * divergence

    monkeypatch.setattr(FlowMatching, "_velocity", without_divergence)
    assert abs(_integral(fitted.score(GRID)) - 1.0) > 0.1


def test_the_determinant_of_a_residual_flow_is_that_of_the_whole_map() -> None:
    import torch

    flow, x = _steep_residual_flow(3)

    def whole(cells: "torch.Tensor") -> "torch.Tensor":
        return _mapped(flow, cells[None])[0]

    found = flow.log_density(x, None)
    base = -0.5 * (_mapped(flow, x).double() ** 2 + np.log(2 * np.pi)).sum(dim=1)
    for row in range(4):
        exact = torch.linalg.slogdet(torch.autograd.functional.jacobian(whole, x[row])).logabsdet
        assert (found - base)[row].item() == pytest.approx(exact.item(), abs=1e-4)
        assert abs(exact.item()) > 0.05  # the control: it is not 0


def _steep_residual_flow(p: int):
    """A flow whose last layers do not begin as nearly zero, where determinants hardly count; and rows."""
    import torch

    from bayesnde_cli.evaluation.baselines.neural.residual import ResidualFlow

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        flow, x = ResidualFlow(p, 0), torch.randn(64, p)
    with torch.no_grad():
        for block in flow.blocks:
            block.net[5].weight.mul_(1000.0)
        flow.log_scale += 0.1
    flow.before_scoring()
    return flow, x


def _mapped(flow, x):
    for index, block in enumerate(flow.blocks):
        x = flow._scaled(index, x + block(x))
    return x


def test_the_divergence_is_the_trace_of_the_jacobian() -> None:
    import torch

    from bayesnde_cli.evaluation.baselines.neural.flow_matching import FlowMatching

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        field, x, context = FlowMatching(4, 2), torch.randn(5, 4), torch.eye(2)[[0, 1, 0, 1, 1]]
    _, divergence = field._velocity(x, 0.3, context)
    found = divergence.detach()
    for row in range(5):
        jacobian = torch.autograd.functional.jacobian(
            lambda cells, row=row: field._velocity(cells[None], 0.3, context[row : row + 1])[0][0], x[row]
        )
        assert float(found[row]) == pytest.approx(float(torch.trace(jacobian)), abs=1e-5)


def test_the_gradient_of_a_residual_flow_is_that_of_its_exact_log_density_in_the_mean() -> None:
    import torch

    flow, x = _steep_residual_flow(2)
    weight = flow.blocks[0].net[5].weight
    random = torch.Generator().manual_seed(2)

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(flow.loss(x, None, random), weight)[0]

    def mean_at(step: float, *, is_whole: bool = True) -> float:
        with torch.no_grad():
            weight.add_(step * direction)
            mean = flow.log_density(x, None).mean() if is_whole else -0.5 * (_mapped(flow, x) ** 2).sum(dim=1).mean()
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


def _heaps(n: int, seed: int) -> Part:
    """Class 0 is narrow and low, class 1 is wide and high."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 2, n)
    return Part(rng.normal(size=(n, 2)) * (0.3 + 0.9 * classes[:, None]) + 2.0 * classes[:, None], classes)


def _log_heaps(part: Part, classes: np.ndarray) -> np.ndarray:
    return stats.norm.logpdf(part.cells, 2.0 * classes[:, None], 0.3 + 0.9 * classes[:, None]).sum(axis=1)


@pytest.mark.parametrize(("name", "share"), [("made", 0.15), ("cfm", 0.05)])
def test_a_conditional_flow_knows_the_class(name: str, share: float) -> None:
    rows = _heaps(1000, 3)
    parts = Parts(_heaps(4000, 1), _heaps(800, 2), rows, ("low", "high")).standardised()
    fitted = neural(name, share=share)(parts.train, parts.validation, 0)
    assert fitted.chosen["fit"] == "conditional"
    found = parts.evaluated.in_file(fitted.score(parts.evaluated))
    assert _log_heaps(rows, rows.classes).mean() - found.mean() < 0.2  # briefly trained; one for both loses 0.65
    swapped = replace(parts.evaluated, classes=1 - rows.classes)
    truth = _log_heaps(rows, rows.classes) - _log_heaps(rows, 1 - rows.classes)
    other = found - parts.evaluated.in_file(fitted.score(swapped))
    is_low = rows.classes == 0  # these are in the tail of the wide class, where a network is off by a nat or so
    assert other[is_low].mean() == pytest.approx(truth[is_low].mean(), abs=2.0)
    assert other[~is_low].mean() > 5.0


def test_a_residual_flow_has_an_expert_for_each_class_and_a_class_without_rows_has_no_density() -> None:
    method = {"resflow": Method(neural("resflow", share=FEW))}
    parts = Parts(_heaps(400, 1), _heaps(80, 2), _heaps(50, 3), ("low", "high", "none"))
    found = competitor("resflow", {"file": parts}, seed=0, methods=method)
    assert found.chosen["fit"] == "experts"
    assert set(found.chosen["classes"]) == {"low", "high"}
    assert np.isfinite(found.log_density).all()
    for name in ("resflow", "made"):
        fitted = neural(name, share=FEW)(parts.train, parts.validation, 0)
        strange = replace(parts.evaluated, classes=np.full(50, 2))
        assert np.isnan(fitted.score(strange)).all()


@pytest.mark.parametrize("name", NEURAL_BASELINES)
def test_far_rows_have_finite_densities_and_a_single_column_works(name: str) -> None:
    fit = neural(name, share=FEW)
    far = Part(np.array([[30.0, -40.0], [0.0, 6.0], [5.0, -5.0]]))
    assert np.isfinite(fit(normal(300, 1), normal(60, 2), 0).score(far)).all()
    column = [Part(part.cells[:, :1]) for part in (normal(300, 1), normal(60, 2), far)]
    assert np.isfinite(fit(column[0], column[1], 0).score(column[2])).all()


@pytest.mark.parametrize("name", ["gaussian_mixture", "nsf", "resflow"])
def test_evaluated_rows_have_no_say(name: str) -> None:
    methods = {name: COMPETITORS[name] if name in DENSITIES else Method(neural(name, share=FEW))}
    parts = Parts(normal(300, 1), normal(60, 2), normal(40, 3))
    others = Part(np.concatenate([parts.evaluated.cells, 30.0 + normal(20, 4).cells]))
    first, second = (
        competitor(name, {"file": each}, seed=0, methods=methods) for each in (parts, replace(parts, evaluated=others))
    )
    assert first.chosen == second.chosen
    assert first.validation == second.validation
    assert np.allclose(first.log_density, second.log_density[:40], rtol=1e-5)
    # The control: validation rows do have a say.
    moved = replace(parts, validation=Part(3.0 + parts.validation.cells))
    assert competitor(name, {"file": moved}, seed=0, methods=methods).validation < first.validation - 1.0


def _log_normal_spaces(n: int) -> dict[str, Parts]:
    """Log-normal columns: as in the file, and their logarithms, which are normal."""
    parts = [np.random.default_rng(seed).normal(size=(size, 2)) for seed, size in ((1, n), (2, 400), (3, 400))]
    logs = Parts(*(Part(z, None, -z.sum(axis=1)) for z in parts))
    return {"file": Parts(*(Part(np.exp(z)) for z in parts)), "model": logs}


def _truth(spaces: dict[str, Parts]) -> float:
    return float(stats.lognorm.logpdf(spaces["file"].evaluated.cells, 1.0).sum(axis=1).mean())


@pytest.mark.parametrize("name", ["gaussian", "gaussian_mixture", "kernel_density", "made"])
def test_the_better_scaling_is_chosen_and_its_jacobian_counted(name: str) -> None:
    spaces = _log_normal_spaces(2000)
    methods = COMPETITORS | {"made": Method(neural("made", share=0.1), neural("made", share=0.02))}
    found = competitor(name, spaces, seed=0, methods=methods)
    assert found.chosen["scaling"] == "model"
    assert found.log_density.mean() == pytest.approx(_truth(spaces), abs=0.1)
    assert found.validation == pytest.approx(found.log_density.mean(), abs=0.5)  # two samples of 400 rows
    # The control: where the columns are normal as they are, they are left as they are.
    normal = [replace(part, log_jacobian=None) for part in _parts_of(spaces["model"])]
    squeezed = [Part(np.exp(part.cells), None, part.cells.sum(axis=1)) for part in normal]
    other = competitor(name, {"file": Parts(*normal), "model": Parts(*squeezed)}, seed=0, methods=methods)
    assert other.chosen["scaling"] == "file"


def _parts_of(parts: Parts) -> tuple[Part, Part, Part]:
    return parts.train, parts.validation, parts.evaluated


def test_the_control_of_it_without_the_jacobian_the_mean_is_off() -> None:
    spaces = _log_normal_spaces(2000)
    bare = Parts(*(replace(part, log_jacobian=None) for part in _parts_of(spaces["model"])))
    found = competitor("gaussian", {"model": bare}, seed=0)
    shift = spaces["model"].evaluated.log_jacobian.mean()
    assert found.log_density.mean() + shift == pytest.approx(_truth(spaces), abs=0.05)
    assert np.std(spaces["model"].evaluated.log_jacobian) > 1.0


def test_a_short_fit_chooses_the_space_and_the_whole_one_is_made_anew_there_once() -> None:
    calls = []

    def fit(kind: str):
        def fitted(train: Part, validation: Part, seed: int) -> FittedParts:
            calls.append(kind)
            return FittedParts(lambda part: -0.5 * (part.cells**2).sum(axis=1), {"kind": kind})

        return fitted

    spaces = _log_normal_spaces(100)
    found = competitor("own", spaces, seed=0, methods={"own": Method(fit("whole"), fit("short"))})
    assert (calls, found.chosen["kind"]) == (["short", "short", "whole"], "whole")
    calls.clear()
    competitor("own", spaces, seed=0, methods={"own": Method(fit("whole"))})
    assert calls == ["whole", "whole"]


def test_detectors_have_a_score_in_the_first_space_and_no_validation_mean() -> None:
    spaces = _log_normal_spaces(200)
    for name in DETECTORS:
        found = competitor(name, spaces, seed=0)
        assert found.validation is None
        assert found.chosen["scaling"] == "file"
        assert found.log_density.shape == (400,)
