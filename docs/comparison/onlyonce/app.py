"""The payments API of the comparison by itself: what stands behind the gateway."""

from fastapi import FastAPI

from payments import routes

app = FastAPI()
routes(app)
