"""An asyncio server that answers with what it got and its digest: `asyncio_echo.py server|client PORT plain|tls DIRECTORY`."""

import asyncio
import hashlib
import ssl
import sys

role, port, kind, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
CONNECTIONS = 300


async def serve(reader, writer):
    """Echoes until the client shuts its half, or says that it is done; then the digest of all of it."""
    digest = hashlib.sha256()
    while data := await reader.read(100_000):
        digest.update(data)
        writer.write(data)
        await writer.drain()
        if data.endswith(b"\0"):
            break
    writer.write(digest.hexdigest().encode())
    await writer.drain()
    writer.close()


async def talk(n, context):
    size = 5_000_000 if n % 50 == 0 else 3_000 + n
    data = (hashlib.sha256(b"%d" % n).digest() * (size // 32 + 1))[:size].replace(b"\0", b"1")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)

    async def send():
        writer.write(data)
        await writer.drain()
        if context:
            writer.write(b"\0")
        else:
            writer.write_eof()

    sending = asyncio.create_task(send())
    answer = await reader.read()
    await sending
    writer.close()
    sent = data + (b"\0" if context else b"")
    return answer == sent + hashlib.sha256(sent).hexdigest().encode()


async def main():
    if role == "server":
        context = None
        if kind == "tls":
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(f"{directory}/certificate", f"{directory}/key")
        server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=context, backlog=1024)
        await server.serve_forever()
    context = None
    if kind == "tls":
        context = ssl.create_default_context(cafile=f"{directory}/certificate")
        context.check_hostname = False
    right = await asyncio.gather(*(talk(n, context) for n in range(CONNECTIONS)))
    print(sum(right), "of", CONNECTIONS, "right")


asyncio.run(main())
