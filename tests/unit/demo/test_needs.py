"""Before its part with Spark the demo says what a machine lacks for it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.demo.stage import lacking
from tests.support.demo import java
from tests.support.jars import ROOT


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        ('openjdk version "17.0.19" 2026-04-21', None),
        ('openjdk version "25" 2025-09-16', None),
        ('java version "1.8.0_392"', "Java 8 is too old"),
        ("no version at all", "Java is missing"),
    ],
)
def test_the_version_of_java_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, lacks: str | None
) -> None:
    """The Java that Spark would take must be new enough."""
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, f"echo '{said}' >&2")))
    found = lacking()
    assert found is None if lacks is None else lacks in (found or "")


def test_without_java_on_the_path_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither JAVA_HOME nor PATH leads to one."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Java is missing" in (lacking() or "")


@pytest.mark.parametrize(("version", "said"), [(None, "pyspark is missing"), ("3.5.1", "pyspark 3.5.1 is too old")])
def test_the_package_is_asked_for(monkeypatch: pytest.MonkeyPatch, version: str | None, said: str) -> None:
    """Without pyspark, or with an old one, the extra that brings it is named."""

    def find(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", find)
    found = lacking() or ""
    assert said in found
    assert "consumer-sidecar[spark]" in found


def test_spark_alone_without_java_is_an_error(tmp_path: Path) -> None:
    """Who asks for the part with Spark is told at once why it cannot be."""
    command = [sys.executable, "-m", "sidecar", "demo", "--sink", "spark"]
    env = {**os.environ, "JAVA_HOME": str(tmp_path)}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (69, "")
    assert "the demo cannot start Spark: Java is missing" in ran.stderr


def test_what_rocketmq_needs_is_named(tmp_path: Path) -> None:
    """Without Java the demo says so, and how to install it."""
    command = [sys.executable, "-m", "sidecar", "demo", "--sink", "http", "--source", "rocketmq"]
    env = {**os.environ, "PATH": str(tmp_path)}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 69
    assert "'java', which is missing" in ran.stderr
    assert "apt-get install" in ran.stderr
