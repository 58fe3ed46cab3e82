// A page of 1 KiB for whoever asks: server.js PORT
const page = 'x'.repeat(1023) + '\n'
require('http').createServer((request, response) => response.end(page)).listen(Number(process.argv[2]), '127.0.0.1')
