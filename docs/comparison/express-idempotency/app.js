// The payments API of the comparison behind express-idempotency, as its README says.
const express = require('express');
const { idempotency, getSharedIdempotencyService } = require('express-idempotency');

const app = express();
let executed = 0;
const wait = (ms) => new Promise((done) => setTimeout(done, ms));

app.use(express.json());
app.post('*', idempotency());

app.post(['/payments', '/other'], async (req, res) => {
    const service = getSharedIdempotencyService();
    if (service.isHit(req)) {
        return;
    }
    const fault = req.get('x-fault');
    if (fault === '4xx') {
        return res.status(402).send('declined');
    }
    if (fault === '5xx') {
        service.reportError(req);
        return res.status(500).send('failed');
    }
    executed += 1;
    const id = executed;
    if (fault === 'slow') {
        await wait(500);
    }
    res.status(201).location(`/payments/${id}`);
    if (fault === 'binary') {
        return res.type('application/octet-stream').send(Buffer.from([...Array(256).keys()]));
    }
    if (fault === 'empty') {
        return res.send('');
    }
    if (fault === 'large') {
        return res.send('x'.repeat(200000));
    }
    if (fault === 'chunked') {
        res.write('{"id":');
        res.write(`${id}}`);
        return res.end();
    }
    res.send({ id });
});

app.get('/count', (req, res) => res.send(`${executed}`));
app.listen(Number(process.argv[2]), '127.0.0.1');
