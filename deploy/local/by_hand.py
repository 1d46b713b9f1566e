"""What the scripts that drive the running fleet by hand share: calls, a signed webhook, counts. Not a command."""
import hashlib, hmac, http.client, json, subprocess, sys, time, uuid

ENV = dict(line.rstrip("\n").split("=", 1) for line in open(".local/env") if "=" in line)
RUN = uuid.uuid4().hex[:8]
WRONG = []


def call(address, method, path, body=None, headers=()):
    connection = http.client.HTTPConnection(address, timeout=20)
    data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    connection.request(method, path, body=data, headers={"Content-Type": "application/json", **dict(headers)})
    response = connection.getresponse()
    status, data = response.status, response.read()
    connection.close()
    return status, json.loads(data or b"{}")


def shop(method, path, body=None, **headers):
    token = ENV["COUNTERFOIL_API_TOKENS"].split(",")[0].split(":", 1)[1]
    return call(ENV["COUNTERFOIL_LISTEN"], method, path, body, {"Authorization": "Bearer " + token, **headers})


def simulator(method, path, body=None):
    return call(ENV["COUNTERFOIL_LOCAL_SIMULATOR_LISTEN"], method, "/simulator" + path, body)[1]


def mac(secret, message):
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def order(name):
    status, made = shop("POST", "/orders", {"reference": f"{name}-{RUN}", "amount_minor": 1099, "currency": "EUR", "customer": {"email": f"{name}-{RUN}@example.com", "name": "Ann"}})
    if status != 201:
        sys.exit(f"the order was not made: {status} {made}")
    return made["id"]


def stripe_captured(order_id, intent, amount=1099):
    thing = {"id": intent, "object": "payment_intent", "amount": amount, "amount_received": amount, "currency": "eur", "status": "succeeded", "metadata": {"order_id": order_id}}
    body = json.dumps({"id": f"evt_{uuid.uuid4().hex}", "object": "event", "type": "payment_intent.succeeded", "created": int(time.time()), "livemode": False, "data": {"object": thing}}).encode()
    now = str(int(time.time()))
    tag = mac(ENV["COUNTERFOIL_STRIPE_SECRETS"].split(",")[0], now.encode() + b"." + body)
    return call(ENV["COUNTERFOIL_LISTEN"], "POST", "/webhooks/stripe", body, {"Stripe-Signature": f"t={now},v1={tag}"})[1].get("outcome")


def sql(query):
    return subprocess.run(["psql", ENV["COUNTERFOIL_DATABASE_URL"], "-AtqXc", query], capture_output=True, text=True, check=True).stdout.strip()


def check(what, got, wanted):
    good = got == wanted
    print(f"{'ok' if good else 'WRONG':<6} {what}: {got}" + ("" if good else f", wanted {wanted}"), flush=True)
    if not good:
        WRONG.append(what)


def until(look, wanted, seconds=40):
    end = time.time() + seconds
    while (got := look()) != wanted and time.time() < end:
        time.sleep(0.1)
    return got


def pay(order_id, intent, amount=1099):
    simulator("POST", "/payments", {"provider": "stripe", "id": intent, "amount": amount, "order": order_id})
    return stripe_captured(order_id, intent, amount)


def counterfoil(*arguments):
    """The tool's exit code and what it printed."""
    done = subprocess.run(["target/debug/counterfoil", *arguments], capture_output=True, text=True, env={**ENV, "PATH": "/usr/bin:/bin", "COUNTERFOIL_LOG": "warn"})
    return done.returncode, done.stdout + done.stderr


def finish():
    sys.exit(f"{len(WRONG)} counts are wrong" if WRONG else None)
