"""A Flask application with one operation. It prints its port, and answers `payment` where it was that
operation that ran. Methods and paths may come from headers, as the usual middleware has it."""

from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

app = Flask(__name__)
app.url_map.strict_slashes = False


class Overrides:
    """Takes method and path from headers, for clients behind old proxies."""

    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __call__(self, environ, start_response):
        for name in ("HTTP_X_HTTP_METHOD_OVERRIDE", "HTTP_X_HTTP_METHOD", "HTTP_X_METHOD_OVERRIDE"):
            environ["REQUEST_METHOD"] = environ.get(name, environ["REQUEST_METHOD"])
        for name in ("HTTP_X_ORIGINAL_URL", "HTTP_X_REWRITE_URL"):
            environ["PATH_INFO"] = environ.get(name, environ["PATH_INFO"]).split("?")[0]
        return self.wrapped(environ, start_response)


@app.post("/api/payments")
def pay():
    return "payment"


@app.route("/", defaults={"path": ""}, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
@app.route("/<path:path>", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
def other(path):
    return "other"


class Quiet(WSGIRequestHandler):
    def log(self, *_):
        pass


server = make_server("127.0.0.1", 0, Overrides(app), threaded=True, request_handler=Quiet)
print(server.server_port, flush=True)
server.serve_forever()
