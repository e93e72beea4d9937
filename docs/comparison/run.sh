#!/usr/bin/env bash
# Runs `onlyonce verify` against each peer and prints what it failed.
#
#   docs/comparison/run.sh FOLDER [PEER...]      installs into FOLDER and leaves the reports there
#
# Needs node and npm, python3 with venv, redis-server and cargo. ONLYONCE names the binary.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
folder="$(mkdir -p "${1:?a folder}" && cd "$1" && pwd)"
shift
peers=("$@")
[ ${#peers[@]} -gt 0 ] || peers=(express-idempotency asgi-idempotency-header fastapi-idempotency drf-idempotency idempotent onlyonce)
onlyonce="${ONLYONCE:-$here/../../target/release/onlyonce}"
port="${PORT:-18500}"
redis_port="${REDIS_PORT:-18499}"
started=()
# A child that is gone already is no reason to stop.
trap 'for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done' EXIT
echo '{"amount":1000,"currency":"eur","customer":"ada"}' > "$folder/body.json"

python_peer() { # PEER: its own environment
    [ -d "$folder/$1" ] || python3 -m venv "$folder/$1"
    "$folder/$1/bin/pip" install -q -r "$here/$1/requirements.txt"
}

start() { # PEER: in the background, on $port
    export PYTHONPATH="$here:$here/$1"
    case "$1" in
        express-idempotency)
            mkdir -p "$folder/$1" && cp "$here/$1"/* "$folder/$1"
            (cd "$folder/$1" && npm install --silent)
            (cd "$folder/$1" && exec node app.js "$port") > "$folder/$1.log" 2>&1 & ;;
        asgi-idempotency-header)
            python_peer "$1"
            redis-server --port "$redis_port" --save '' --appendonly no > "$folder/redis.log" &
            started+=($!)
            REDIS_URL="redis://127.0.0.1:$redis_port" "$folder/$1/bin/uvicorn" app:app --port "$port" > "$folder/$1.log" 2>&1 & ;;
        fastapi-idempotency)
            python_peer "$1"
            "$folder/$1/bin/uvicorn" app:app --port "$port" > "$folder/$1.log" 2>&1 & ;;
        drf-idempotency)
            python_peer "$1"
            rm -f "$folder/drf.db"
            DATABASE="$folder/drf.db" "$folder/$1/bin/gunicorn" app:application --threads 64 \
                -b "127.0.0.1:$port" > "$folder/$1.log" 2>&1 & ;;
        idempotent)
            mkdir -p "$folder/$1" && cp -r "$here/$1"/* "$folder/$1"
            # It asks for Rust 1.98 and builds with 1.95 as well.
            (cd "$folder/$1" && cargo build -q --release --ignore-rust-version)
            "$folder/$1/target/release/peer" "$port" > "$folder/$1.log" 2>&1 & ;;
        onlyonce)
            python_peer "$1"
            "$folder/$1/bin/uvicorn" app:app --port $((port + 100)) > "$folder/$1-api.log" 2>&1 &
            started+=($!)
            rm -f "$folder"/onlyonce.db*
            FOLDER="$folder" LISTEN="127.0.0.1:$port" API="http://127.0.0.1:$((port + 100))" \
                "$onlyonce" serve --config "$here/$1/gateway.yaml" > "$folder/$1.log" 2>&1 & ;;
        *) echo "no such peer: $1" >&2; exit 2 ;;
    esac
    started+=($!)
}

for peer in "${peers[@]}"; do
    start "$peer"
    until curl -sf "http://127.0.0.1:$port/count" > /dev/null; do sleep 0.2; done
    case "$peer" in
        fastapi-idempotency | drf-idempotency | onlyonce) profile=ietf ;;
        *) profile=stripe ;;
    esac
    # These can demand a key; the others leave that to the application.
    case "$peer" in
        drf-idempotency | idempotent | onlyonce) optional= ;;
        *) optional=--key-optional ;;
    esac
    arguments=(--profile "$profile" --body "$folder/body.json" --count-url "http://127.0.0.1:$port/count"
        --other-url "http://127.0.0.1:$port/other" --header 'Authorization: Bearer one'
        --second-caller-header 'Authorization: Bearer two' --json)
    for case in slow 4xx 5xx binary empty large chunked; do
        arguments+=(--case "$case=header:X-Fault: $case")
    done
    "$onlyonce" verify "http://127.0.0.1:$port/payments" $optional "${arguments[@]}" > "$folder/$peer.json" || [ $? -eq 1 ]
    printf '\n== %s, profile %s\n' "$peer" "$profile"
    python3 - "$folder/$peer.json" <<'PRINT'
import json, sys

report = json.load(open(sys.argv[1]))
print(report["summary"], report["conclusion"])
for check in report["checks"]:
    if check["verdict"] != "pass":
        print(f'{check["id"]:20} {check["verdict"]:15} {check["severity"] or "":8} {check["seen"]}')
PRINT
    port=$((port + 1))
done
