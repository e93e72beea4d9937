"""asgi-idempotency-header with its Redis backend, as its README says."""

import os

from fastapi import FastAPI
from fastapi.middleware import Middleware
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import RedisBackend
from redis.asyncio import from_url

from payments import routes

backend = RedisBackend(redis=from_url(os.environ["REDIS_URL"]))
app = FastAPI(middleware=[Middleware(IdempotencyHeaderMiddleware, backend=backend)])
routes(app)
