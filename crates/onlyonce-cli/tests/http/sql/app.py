"""A payments API behind the gateway: it settles the gateway's key in its own transaction.

Prints its port. The header X-Mode chooses what goes wrong: hold=SECONDS keeps the transaction open
after the key was settled in it, silent commits and never answers, die commits and is gone, die-first
is gone before the commit.
"""
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        mode = self.headers.get("X-Mode", "")
        with psycopg.connect(os.environ["DATABASE_URL"]) as db:
            key = self.headers["Idempotency-Key"]
            row = db.execute("INSERT INTO payments (key) VALUES (%s) RETURNING id", (key,)).fetchone()
            body = b'{"id":"%d","by":"python"}' % row[0]
            headers = {"Content-Type": "application/json", "Set-Cookie": "a=1", "Link": ["<a>", "<b>"]}
            db.execute(
                "SELECT onlyonce.settle(%s, 201, %s, %s)",
                (self.headers["Idempotency-Attempt"], json.dumps(headers), body),
            )
            if mode.startswith("hold="):
                time.sleep(float(mode[5:]))
            if mode == "die-first":
                os.kill(os.getpid(), signal.SIGKILL)
        if mode == "silent":
            time.sleep(60)
        if mode == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        self.send_response(201)
        for name, value in headers.items():
            for one in value if isinstance(value, list) else [value]:
                self.send_header(name, one)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Api)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
