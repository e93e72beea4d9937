"""drf-idempotency with its database backend, as its README says."""

import itertools
import json
import os
import time

import django
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

settings.configure(
    SECRET_KEY="comparison",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["DATABASE"],
            "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
        }
    },
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "rest_framework",
        "drf_idempotency",
    ],
    MIDDLEWARE=["drf_idempotency.middleware.IdempotencyMiddleware"],
    IDEMPOTENCY={
        "BACKEND": "drf_idempotency.backends.database.DatabaseBackend",
        "REQUIRE_KEY": True,
    },
)
django.setup()
call_command("migrate", verbosity=0)

numbers = itertools.count(1)
executed = 0


def pay(request):
    global executed
    try:
        json.loads(request.body)
    except ValueError:
        return JsonResponse({"error": "not JSON"}, status=400)
    fault = request.headers.get("x-fault")
    if fault == "4xx":
        return JsonResponse({"error": "declined"}, status=402)
    if fault == "5xx":
        return JsonResponse({"error": "failed"}, status=500)
    number = next(numbers)
    executed = max(executed, number)
    if fault == "slow":
        time.sleep(0.5)
    headers = {"location": f"/payments/{number}"}
    if fault == "binary":
        octets = "application/octet-stream"
        return HttpResponse(bytes(range(256)), octets, 201, headers=headers)
    if fault == "empty":
        return HttpResponse(b"", status=201, headers=headers)
    if fault == "large":
        return HttpResponse("x" * 200_000, "text/plain", 201, headers=headers)
    if fault == "chunked":
        parts = ['{"id":', f"{number}}}"]
        json_type = "application/json"
        return StreamingHttpResponse(parts, content_type=json_type, status=201, headers=headers)
    return JsonResponse({"id": number}, status=201, headers=headers)


def count(request):
    return HttpResponse(str(executed))


urlpatterns = [path("payments", pay), path("other", pay), path("count", count)]
application = get_wsgi_application()
