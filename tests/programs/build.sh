#!/usr/bin/env bash
# Builds what programs.py needs beyond Debian's packages, below target/programs: a C++ server with Boost.Asio, and Spark, a package of
# PyPI (317 MB to download, once). Without a network Spark is left out, and run.py says so.
set -euo pipefail
cd "$(dirname "$0")/../.."
into=target/programs
mkdir -p "$into"

if [ tests/programs/clients/echo.cpp -nt "$into/echo" ]; then
    echo "Building $into/echo" >&2
    g++ -O2 -pthread -o "$into/echo" tests/programs/clients/echo.cpp
fi

if [ ! -x "$into/venv/bin/spark-submit" ]; then
    echo "Installing pyspark (PyPI) into $into/venv" >&2
    /usr/bin/python3 -m venv --clear "$into/venv"
    "$into/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==3.5.7 ||
        echo "pyspark could not be installed: Spark will not be measured" >&2
fi
