// An Express application with one operation. It prints its port, and answers `payment` where it was that
// operation that ran. Methods and paths may come from headers, as the usual middleware has it.
const { createRequire } = require('node:module');
const express = createRequire(process.argv[2] + '/')('express');

const app = express();
app.use((request, response, next) => {
  for (const name of ['x-http-method-override', 'x-http-method', 'x-method-override']) {
    if (request.headers[name]) request.method = request.headers[name].toUpperCase();
  }
  for (const name of ['x-original-url', 'x-rewrite-url']) {
    if (request.headers[name]) request.url = request.headers[name];
  }
  next();
});
app.post('/api/payments', (request, response) => response.send('payment'));
app.post('/api/payments.:format', (request, response) => response.send('payment'));
app.use((request, response) => response.send('other'));
const server = app.listen(0, '127.0.0.1', () => console.log(server.address().port));
