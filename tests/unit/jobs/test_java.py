"""The JVM of a Spark session: what will not do is named before it starts, and what it says as it ends
is in the error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar_jobs.driver import NOT_STARTED
from magnetar_jobs.java import JavaMissing, require_java
from magnetar_operator.jobs.plan import EXIT_NOT_STARTED


def test_missing_java_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="openjdk-17"):
        require_java({"PATH": str(tmp_path)})


def test_an_old_java_is_recognised_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("")
    java.chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    with pytest.raises(JavaMissing, match="is Java 11"):
        require_java({"JAVA_HOME": str(tmp_path)})


STARTING = """
import sys
from pyspark import SparkConf
from magnetar_jobs.driver import exit_code
from magnetar_jobs.java import start_java
from magnetar_jobs.reporting import Report

settings = {"spark.authenticate.secret": "hush", "spark.driver.memory": "512m"}
configuration = SparkConf(loadDefaults=False).setAll(settings.items())
sys.exit(exit_code("compaction", lambda: start_java(configuration), Report(False)))
"""
JAVA = """#!/bin/sh
echo "$@" >> "$0.arguments"
echo Error occurred during initialization of VM
echo Could not reserve enough space for object heap >&2
exit 1
"""


def test_the_last_words_of_a_jvm_that_ends_at_once_are_in_the_error(tmp_path: Path) -> None:
    """And in the log; the attempt counts as one that did not start, by an exit code that the
    operator knows; a secret is in no command line."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(JAVA)
    java.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-c", STARTING],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == NOT_STARTED == EXIT_NOT_STARTED, ran.stderr
    logged = ran.stdout
    assert "JavaEnded: Spark's JVM ended before it was ready; it said:" in logged
    for words in ("Error occurred during initialization of VM", "Could not reserve enough space"):
        assert words in logged
        assert words in ran.stderr, "passed on"
    arguments = Path(f"{java}.arguments").read_text()
    assert "512m" in arguments
    assert "hush" not in arguments
