"""Serve the page on this machine, with models in ONNX's standard operators, their inputs and the expected outputs."""

import argparse
import functools
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np

import quark_numba

PAGE = Path(__file__).parent
MODELS = PAGE.parent.parent / "tests" / "models"


class Handler(SimpleHTTPRequestHandler):
    extensions_map = {".html": "text/html", ".mjs": "text/javascript", ".wasm": "application/wasm"}  # noqa: RUF012

    def do_GET(self):
        url = urlsplit(self.path)
        options = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path in ("/model.onnx", "/x", "/y"):
            self.send_content(content(url.path, **options))
        else:
            super().do_GET()

    def send_content(self, content):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def translate_path(self, path):
        return str(PAGE / "index.html") if urlsplit(path).path == "/" else super().translate_path(path)


def content(path, model, provider):
    """Return a model, or its inputs x or its outputs y as float32."""
    if path == "/model.onnx":
        operators = "webgpu" if provider == "webgpu" else "standard"
        return quark_numba.optimize(MODELS / f"textline_cls_{Path(model).name}.onnx", operators=operators).SerializeToString()
    with np.load(MODELS / "textline_cls_expected.npz") as arrays:
        return arrays["x" if path == "/x" else model].tobytes()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--packages", default=PAGE, help="the folder in which npm installed the packages")
    options = parser.parse_args()
    handler = functools.partial(Handler, directory=options.packages)
    with ThreadingHTTPServer(("127.0.0.1", options.port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
