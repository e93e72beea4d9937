"""Creates charges with stripe-python and prints, as JSON, what became of them.

usage: charge.py URL (create | twice | mismatch)
"""
import json
import sys
import threading

import stripe

url, what = sys.argv[1:]
client = stripe.StripeClient(
    "sk_test_onlyonce", base_addresses={"api": url}, max_network_retries=5
)


def create(key, amount=1000):
    try:
        charge = client.v1.charges.create(
            {"amount": amount, "currency": "eur", "source": "tok_visa"},
            {"idempotency_key": key},
        )
        replayed = charge.last_response.headers.get("Idempotent-Replayed")
        return {"id": charge.id, "replayed": replayed}
    except stripe.StripeError as error:
        return {"error": type(error).__name__, "status": error.http_status, "code": error.code}


results = []
if what == "create":
    results.append(create("order-4711-charge"))
elif what == "mismatch":
    results.append(create("order-4711-charge"))
    results.append(create("order-4711-charge", amount=2000))
elif what == "twice":
    # The second finds the first still running.
    threads = [
        threading.Thread(target=lambda: results.append(create("order-4711-charge")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(json.dumps({"version": stripe.VERSION, "results": results}))
