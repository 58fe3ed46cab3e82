"""Spark's shuffle between two executors: shuffle.py serve PORT DIRECTORY | shuffle.py ask PORT SECONDS

The one that serves is the driver; it has its executors do jobs for whoever asks, for so many seconds."""

import os
import pathlib
import socket
import sys
import time

ROWS, PARTS = 400_000, 4
mode, port = sys.argv[1], int(sys.argv[2])


def serve(directory):
    import pyspark
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col

    # Workers write below Spark's home: this one goes with the directory.
    home = pathlib.Path(directory) / "spark"
    home.mkdir()
    for part in pathlib.Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    os.environ.update(SPARK_HOME=str(home), SPARK_LOCAL_IP="127.0.0.1", SPARK_LOCAL_DIRS=directory)
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.executor.memory": "768m"}
    builder = SparkSession.builder.master("local-cluster[2,1,768]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.range(100).repartition(PARTS, "id").count()
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            with listener.accept()[0] as asking:
                if not (seconds := asking.recv(16)):
                    continue
                jobs, start = 0, time.monotonic()
                while time.monotonic() < start + float(seconds):
                    moved = spark.range(0, ROWS, 1, PARTS).repartition(PARTS, col("id"))
                    count, total = moved.selectExpr("count(*)", "sum(id)").first()
                    if (count, total) != (ROWS, ROWS * (ROWS - 1) // 2):
                        sys.exit(f"{count} rows whose sum is {total}")
                    jobs += 1
                asking.sendall(f"rows/s: {jobs * ROWS / (time.monotonic() - start):.1f}\n".encode())


if mode == "serve":
    serve(sys.argv[3])
with socket.create_connection(("127.0.0.1", port)) as asking:
    asking.sendall(sys.argv[3].encode())
    print(asking.makefile().read() or sys.exit("the driver ended"))
