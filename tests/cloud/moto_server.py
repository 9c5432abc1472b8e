"""moto's S3 behind a counter, and the GCS XML interface over the same: `python moto_server.py PORT s3|gcs`.

`GET /_lakepond/log` lists every request that was answered: method, path, query, status, bytes of the body.

What obstore's GCS client needs of the XML interface beyond S3's is little: generations in place of ETags
in the conditions, and a generation in every answer. `x-goog-if-generation-match: 0` is "only if it is not
there".
"""

import json
import os
import sys
import threading
from urllib.parse import parse_qs

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

moto = DomainDispatcherApplication(create_backend_app)
log: list[list] = []
lock = threading.Lock()
SIGNED = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""moto asks who somebody is, and believes it"""


def app(environ, start_response):
    path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
    if path == "/_lakepond/log":
        start_response("200 OK", [("Content-Type", "application/json")])
        with lock:
            return [json.dumps(log).encode()]
    if GCS:
        token = environ.get("HTTP_AUTHORIZATION", "")
        environ["HTTP_AUTHORIZATION"] = SIGNED
        if token == "Bearer wrong":
            start_response("401 Unauthorized", [("Content-Length", "0")])
            return [b""]
        if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        if "uploads" in parse_qs(query, keep_blank_values=True):
            environ["HTTP_CONTENT_TYPE"] = environ["CONTENT_TYPE"] = ""
    size = int(environ.get("CONTENT_LENGTH") or 0)

    def answer(status, headers, *rest):
        with lock:
            log.append([environ["REQUEST_METHOD"], path, query, int(status[:3]), size])
        if GCS:
            headers = [*headers, ("x-goog-generation", "1")]
        return start_response(status, headers, *rest)

    return moto(environ, answer)


if __name__ == "__main__":
    GCS = sys.argv[2] == "gcs"
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "x")
    server = make_server("127.0.0.1", int(sys.argv[1]), app, threaded=True)
    server.serve_forever()
