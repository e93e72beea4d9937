// A payments API behind the gateway: it settles the gateway's key in its own transaction.
// Prints its port. X-Mode: silent commits and never answers, die commits and is gone.
const http = require('http');
const { Pool } = require('pg');

const pool = new Pool({ connectionString: process.env.DATABASE_URL });

const server = http.createServer((request, response) => {
  request.resume().on('end', async () => {
    const db = await pool.connect();
    try {
      await db.query('BEGIN');
      const { rows } = await db.query('INSERT INTO payments (key) VALUES ($1) RETURNING id',
        [request.headers['idempotency-key']]);
      const body = Buffer.from(JSON.stringify({ id: String(rows[0].id), by: 'node' }));
      await db.query('SELECT onlyonce.settle($1, 201, $2, $3)',
        [request.headers['idempotency-attempt'], { 'content-type': 'application/json' }, body]);
      await db.query('COMMIT');
      if (request.headers['x-mode'] === 'silent') return;
      if (request.headers['x-mode'] === 'die') process.kill(process.pid, 'SIGKILL');
      response.writeHead(201, { 'content-type': 'application/json' });
      response.end(body);
    } catch (error) {
      await db.query('ROLLBACK');
      response.writeHead(500);
      response.end(String(error));
    } finally {
      db.release();
    }
  });
});
server.listen(Number(process.argv[2]), '127.0.0.1', () => console.log(server.address().port));
