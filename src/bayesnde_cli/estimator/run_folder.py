"""The run directory of an estimator: the user's, or a temporary one that goes with it."""

import io
import shutil
import tempfile
import weakref
import zipfile
from pathlib import Path
from typing import Any


class RunFolder:
    """A run directory. A temporary one is carried along when the object is pickled: its files are the model."""

    def __init__(self, path: str | Path | None) -> None:
        self._is_temporary = path is None
        self.path = Path(tempfile.mkdtemp(prefix="bayesnde-run-") if path is None else path)
        if self._is_temporary:
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def copy_to(self, path: Path) -> None:
        """Copy all files to a folder that is not there yet: the whole of it, or nothing."""
        if path.exists():
            raise FileExistsError(f"{path} is there already: choose another place for the run")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".bayesnde-", dir=path.parent) as folder:
            Path(shutil.copytree(self.path, Path(folder) / "run")).rename(path)

    def __getstate__(self) -> dict[str, Any]:
        if not self._is_temporary:
            return {"path": str(self.path)}
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for file in sorted(self.path.rglob("*")):
                archive.write(file, file.relative_to(self.path))
        return {"path": None, "files": packed.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        RunFolder.__init__(self, state["path"])
        if self._is_temporary:
            with zipfile.ZipFile(io.BytesIO(state["files"])) as archive:
                archive.extractall(self.path)
