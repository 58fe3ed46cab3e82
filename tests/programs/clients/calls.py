"""gRPC without generated code: calls.py serve PORT | unary PORT SECONDS | stream PORT SECONDS"""

import concurrent.futures
import sys
import time

import grpc

mode, port = sys.argv[1], int(sys.argv[2])


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/echo/Unary":
            return grpc.unary_unary_rpc_method_handler(lambda request, context: request)
        return grpc.unary_stream_rpc_method_handler(answers)


def answers(request, context):
    while context.is_active():
        yield request


if mode == "serve":
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), handlers=[Echo()])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()

seconds = float(sys.argv[3])
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result(10)
calls, message, end = 0, b"x" * 64, time.monotonic() + seconds
if mode == "unary":
    call = channel.unary_unary("/echo/Unary")
    while time.monotonic() < end:
        if call(message) != message:
            sys.exit("another answer than was asked for")
        calls += 1
else:
    stream = channel.unary_stream("/echo/Stream")(message)
    for answer in stream:
        if answer != message:
            sys.exit("another message than was asked for")
        calls += 1
        if time.monotonic() >= end:
            break
    stream.cancel()
print(f"calls/s: {calls / seconds:.1f}")
