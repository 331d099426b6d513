"""`status` must start in a tenth of a second: the names of files come without Arrow, NumPy or TensorFlow."""

import subprocess
import sys

LIGHT = "atomic canonical claims differences discard fingerprint layout manifest plan processes shards upstream"


def test_all_but_tables_and_blocks_import_nothing_heavy():
    modules = ", ".join(LIGHT.split())
    program = f"import sys; from bayesnde_cli.artifacts import {modules}; print(*sorted(sys.modules))"
    listing = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    tops = {name.partition(".")[0] for name in listing.split()}
    assert tops.isdisjoint({"pyarrow", "numpy", "scipy", "sklearn", "tensorflow", "keras", "pandas"})
    assert "bayesnde_cli" in tops
