"""Print, as a Markdown table, the latency of the models in tests/models against the float model's."""

import json
import subprocess
import sys
from pathlib import Path

MODELS = Path(__file__).parent.parent / "tests" / "models"
VARIANTS = ("bf16", "fp16", "i32", "u32")


def main() -> None:
    print("| model | nodes | median latency, ms | float model, ms | ratio | SQNR, dB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for variant in VARIANTS:
        command = [sys.executable, "-m", "quark_numba", "run", MODELS / f"textline_cls_{variant}.onnx", "--json"]
        command += ["--reference", MODELS / "textline_cls_float.onnx", "--inputs", MODELS / "textline_cls_expected.npz"]
        report = json.loads(subprocess.check_output([*command, "--threads", "2", "--runs", "200"]))
        nodes = sum(nodes["count"] for nodes in report["nodes"])
        reference = report["reference"]
        milliseconds = [f"{1e3 * side['median_seconds']:.2f}" for side in (report, reference)]
        row = [variant, str(nodes), *milliseconds, f"{reference['latency_ratio']:.2f}"]
        row.append(f"{reference['outputs'][0]['sqnr_db']:.1f}")
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
