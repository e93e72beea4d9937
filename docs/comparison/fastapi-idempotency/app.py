"""fastapi-idempotency, grouped by credential as its README advises for an API with logins."""

from fastapi import FastAPI, Request
from fastapi_idempotency import IdempotencyMiddleware

from payments import routes


def scope(request: Request) -> str:
    return request.headers.get("authorization", "")


app = FastAPI()
app.add_middleware(IdempotencyMiddleware, scope=scope)
routes(app)
