"""What competitors are called where people read."""

_NAMES = {
    "gaussian": "Gaussian", "gaussian_mixture": "Gaussian mixture", "kernel_density": "kernel density", "made": "MADE",
    "maf": "MAF", "realnvp": "Real NVP", "nsf": "NSF", "cfm": "flow matching (CFM)", "resflow": "Residual Flow",
    "roundtrip": "Roundtrip", "one_class_svm": "one-class SVM", "isolation_forest": "isolation forest",
    "distance": "distance from the mean", "blurred_kernels": "kernel density, blurred as ours",
}  # fmt: skip


def method_name(method: str, *, is_own: bool) -> str:
    """The name of a recipe of ours, or of a competitor."""
    return f"ours, {method}" if is_own else _NAMES.get(method, method)
