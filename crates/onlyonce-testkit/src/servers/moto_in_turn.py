"""moto's DynamoDB, one request at a time: its threaded server has no lock, so that conditions could race
and a cancelled transaction would take back what others wrote meanwhile."""
import sys
import threading

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

turn = threading.Lock()
moto = DomainDispatcherApplication(create_backend_app)


def one_at_a_time(environ, start_response):
    with turn:
        return list(moto(environ, start_response))


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is two writes, and must not wait for the acknowledgement of the first.
    disable_nagle_algorithm = True

    def log_request(self, *_):
        pass


make_server("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True, request_handler=Quiet).serve_forever()
