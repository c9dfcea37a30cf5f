"""Flink's ``MathUtils`` against ours."""

from __future__ import annotations

from typing import Any

from aiomailbox.keygroups.assignment import (
    bit_mix,
    jenkins_hash,
    long_to_int_with_bit_mixing,
    murmur_hash,
)

FILE = "mathutils_hash"


def run_case(case: dict[str, Any]) -> None:
    """Compare all four mixers on one pair of inputs."""
    assert murmur_hash(case["input"]) == case["murmurHash"]
    assert bit_mix(case["input"]) == case["bitMix"]
    assert jenkins_hash(case["input"]) == case["jenkinsHash"]
    mixed = long_to_int_with_bit_mixing(case["long_input"])
    assert mixed == case["longToIntWithBitMixing"]
