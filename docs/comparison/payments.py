"""The payments API of the comparison, for the FastAPI peers."""

import asyncio

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse


def routes(app: FastAPI) -> None:
    state = {"executed": 0}

    async def pay(request: Request):
        try:
            await request.json()
        except ValueError:
            return JSONResponse({"error": "not JSON"}, 400)
        fault = request.headers.get("x-fault")
        if fault == "4xx":
            return JSONResponse({"error": "declined"}, 402)
        if fault == "5xx":
            return JSONResponse({"error": "failed"}, 500)
        state["executed"] += 1
        number = state["executed"]
        if fault == "slow":
            await asyncio.sleep(0.5)
        headers = {"location": f"/payments/{number}"}
        if fault == "binary":
            return Response(bytes(range(256)), 201, headers, "application/octet-stream")
        if fault == "empty":
            return Response(b"", 201, headers)
        if fault == "large":
            return PlainTextResponse("x" * 200_000, 201, headers)
        if fault == "chunked":
            parts = iter(['{"id":', f"{number}}}"])
            return StreamingResponse(parts, 201, headers, "application/json")
        return JSONResponse({"id": number}, 201, headers)

    async def count():
        return state["executed"]

    app.add_api_route("/payments", pay, methods=["POST"])
    app.add_api_route("/other", pay, methods=["POST"])
    app.add_api_route("/count", count)
