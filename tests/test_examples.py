"""Every example runs, the notebook's code cell after cell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

EXAMPLES = ROOT / "examples"


@pytest.mark.compiled
@pytest.mark.parametrize("path", sorted(filter(Path.is_file, EXAMPLES.iterdir())), ids=lambda path: path.name)
@pytest.mark.slow
def test_example(path, tmp_path):
    command, code = [sys.executable, str(path)], None
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        command, code = (
            [sys.executable, "-"],
            "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"),
        )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, input=code, capture_output=True, text=True, cwd=EXAMPLES, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout
