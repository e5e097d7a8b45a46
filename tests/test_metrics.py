"""Metrics: declared once, named by one rule, labelled by what we speak and never by who talks to us."""

from __future__ import annotations

import re

import pytest

from .reference import reference

METRICS = reference.declared().metrics

every_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)


@every_metric
def test_labels_are_protocol_version_and_reason_only(metric: reference.Metric) -> None:
    assert set(metric.labels) <= {"protocol", "version", "reason"}


@every_metric
def test_names_have_package_subsystem_what_and_unit(metric: reference.Metric) -> None:
    assert re.fullmatch(r"catchment_[a-z]+_[a-z_]+", metric.name)
    assert (metric.name.endswith("_total")) == (metric.kind == "counter")


def test_there_are_some() -> None:
    assert len(METRICS) >= 12
    assert len({metric.name for metric in METRICS}) == len(METRICS)
