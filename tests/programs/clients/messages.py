"""Sends messages through RabbitMQ to another process, each confirmed before the next: messages.py PORT SECONDS"""

import multiprocessing
import sys
import time

import pika

port, seconds = int(sys.argv[1]), float(sys.argv[2])
QUEUE, BODY = "beeline", b"x" * 60


def channel():
    opened = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
    opened.queue_declare(QUEUE, auto_delete=False)
    return opened


def consume(told):
    """Takes messages until an empty one, which must come in the order of their numbers; tells how many there were."""
    taken = channel()
    taken.basic_qos(prefetch_count=100)
    count = 0
    for method, _, body in taken.consume(QUEUE, inactivity_timeout=20):
        if method is None:
            told.put("no message for 20 s")
            return
        taken.basic_ack(method.delivery_tag)
        if not body:
            break
        if body != count.to_bytes(4, "big") + BODY:
            told.put(f"message {count} has another content")
            return
        count += 1
    taken.connection.close()
    told.put(count)


told = multiprocessing.Queue()
consumer = multiprocessing.Process(target=consume, args=(told,))
consumer.start()
out = channel()
out.confirm_delivery()
sent, end = 0, time.monotonic() + seconds
while time.monotonic() < end:
    out.basic_publish("", QUEUE, sent.to_bytes(4, "big") + BODY)
    sent += 1
out.basic_publish("", QUEUE, b"")
taken = told.get(timeout=30)
consumer.join()
out.connection.close()
if taken != sent:
    sys.exit(f"{sent} messages were sent: {taken}")
print(f"messages/s: {sent / seconds:.1f}")
