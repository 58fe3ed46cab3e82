"""Brokers and frameworks: RabbitMQ, ZooKeeper, Dask, PyTorch, Spark, Boost.Asio. Each with its data in a directory of its own."""

from program import BUILT, PYTHON, Program, number, python

RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
ZOOKEEPER = "/usr/share/java/zookeeper.jar"
SPARK = BUILT / "venv"
ECHO = BUILT / "echo"


def rabbitmq(directory, names, nodes, port):
    """The broker, and before it the daemon of names that Erlang would otherwise start for good."""
    variables = {
        "HOME": str(directory), "ERL_EPMD_PORT": str(names), "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"beeline{port}@localhost", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(nodes), "RABBITMQ_LOGS": "-", "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbit"), "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"), "RABBITMQ_GENERATED_CONFIG_DIR": str(directory / "generated"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
    }
    return [(["epmd", "-address", "127.0.0.1", "-port", str(names)], {}), ([RABBITMQ], variables)]


def zookeeper(directory, port):
    conf = directory / "zoo.cfg"
    conf.write_text(f"""
tickTime=2000
dataDir={directory}/data
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
""")
    return [(["java", "-cp", ZOOKEEPER, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(conf)], {})]


def dask(directory, port):
    """A scheduler and two workers, which ask it until it is there."""
    here = ["--host", "127.0.0.1", "--no-dashboard"]
    worker = [PYTHON, "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", *here, "--no-nanny", "--nthreads", "1",
              "--local-directory", str(directory)]
    return [([PYTHON, "-m", "distributed.cli.dask_scheduler", "--port", str(port), *here], {}), (worker, {}), (worker, {})]


def gives(mode):
    return {"servers": dask, "client": lambda port, seconds: python("tasks.py", mode, port, seconds)}


def spark(*words):
    return [str(SPARK / "bin/python"), *python("shuffle.py", *words)[1:]]


def echo(connections):
    return {"servers": lambda directory, port: [([str(ECHO), "serve", str(port)], {})],
            "client": lambda port, seconds: [str(ECHO), "ask", str(port), str(seconds), str(connections)],
            "figure": number(r"echoes/s:")}


SERVICES = [
    Program("rabbitmq", "RabbitMQ, a confirmed message at a time to a consumer (Python)", [RABBITMQ, "epmd", PYTHON], rabbitmq,
            lambda port, seconds: python("messages.py", port, seconds), number(r"messages/s:"), ports=3, warm_seconds=3),
    Program("zookeeper", "ZooKeeper, reads of a node (Python)", ["java", PYTHON], zookeeper,
            lambda port, seconds: python("znode.py", port, seconds), number(r"reads/s:"), warm_seconds=3),
    Program("dask-scatter", "Dask, blocks of 1 MiB to a worker and back", [PYTHON], figure=number(r"megabytes/s:"), unit=" MB/s",
            **gives("scatter")),
    Program("dask-submit", "Dask, tasks in batches of 50 to two workers", [PYTHON], figure=number(r"tasks/s:"), **gives("submit")),
    Program("gloo", "PyTorch, all-reduce of 256 KiB over gloo, 2 processes", [PYTHON],
            lambda directory, port: [(python("reduce.py", "serve", port), {})],
            lambda port, seconds: python("reduce.py", "ask", port, seconds), number(r"all-reduces/s:")),
    Program("spark", "Spark, a shuffle between two executors", ["java", SPARK / "bin/spark-submit", SPARK / "bin/python"],
            lambda directory, port: [(spark("serve", port, directory), {})],
            lambda port, seconds: spark("ask", port, max(2, seconds)), number(r"rows/s:"), unit=" rows/s", warm_seconds=8),
    Program("asio-1", "Boost.Asio echo (C++), 1 connection", [ECHO], **echo(1)),
    Program("asio-50", "Boost.Asio echo (C++), 50 connections", [ECHO], **echo(50)),
]
