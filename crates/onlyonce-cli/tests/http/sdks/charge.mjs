// Creates charges with stripe-node and prints, as JSON, what became of them.
//
// usage: node charge.mjs URL (create | twice | mismatch)
import Stripe from 'stripe';

const [url, what] = process.argv.slice(2);
const {hostname, port} = new URL(url);
const client = new Stripe('sk_test_onlyonce', {
  host: hostname,
  port,
  protocol: 'http',
  maxNetworkRetries: 5,
  telemetry: false,
});

async function create(idempotencyKey, amount = 1000) {
  try {
    const charge = await client.charges.create(
      {amount, currency: 'eur', source: 'tok_visa'},
      {idempotencyKey},
    );
    const replayed = charge.lastResponse.headers['idempotent-replayed'] ?? null;
    return {id: charge.id, replayed};
  } catch (error) {
    return {error: error.type, status: error.statusCode, code: error.code};
  }
}

const key = 'order-4711-charge';
const results = [];
if (what === 'create') {
  results.push(await create(key));
} else if (what === 'mismatch') {
  results.push(await create(key));
  results.push(await create(key, 2000));
} else if (what === 'twice') {
  // The second finds the first still running.
  results.push(...(await Promise.all([create(key), create(key)])));
}
console.log(JSON.stringify({version: Stripe.PACKAGE_VERSION, results}));
