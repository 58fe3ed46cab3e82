// An HTTP server that answers with the checksum of what it got, and a client: `http.js server|client PORT`.
'use strict';
const http = require('http');
const crypto = require('crypto');
const [kind, port] = [process.argv[2], Number(process.argv[3])];
const sum = (data) => crypto.createHash('sha256').update(data).digest('hex');
const body = (length) => Buffer.alloc(length, sum(String(length)));

function serve() {
  http.createServer((request, response) => {
    if (request.method === 'GET') {
      response.end(body(Number(request.url.slice(1))));
      return;
    }
    const hash = crypto.createHash('sha256');
    request.on('data', (piece) => hash.update(piece));
    request.on('end', () => response.end(hash.digest('hex')));
  }).listen(port, '127.0.0.1');
}

function ask(agent, method, path, data) {
  return new Promise((resolve, reject) => {
    const request = http.request({ host: '127.0.0.1', port, agent, method, path }, (response) => {
      const pieces = [];
      response.on('data', (piece) => pieces.push(piece));
      response.on('end', () => resolve(Buffer.concat(pieces)));
    });
    request.on('error', reject);
    request.end(data);
  });
}

async function use() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
  for (const length of [0, 1, 1000, 100000, 8000000]) {
    const got = await ask(agent, 'GET', `/${length}`);
    const told = await ask(agent, 'POST', '/', body(length));
    console.log(length, got.length, sum(got) === sum(body(length)), String(told) === sum(body(length)));
  }
  const many = await Promise.all([...Array(200).keys()].map((n) => ask(agent, 'GET', `/${n * 100}`)));
  console.log('at once', many.filter((got, n) => sum(got) === sum(body(n * 100))).length);
  agent.destroy();
}

if (kind === 'server') serve();
else use().catch((error) => { console.log(String(error)); process.exitCode = 1; });
