"""From a key to its key group to the subtask that owns it: pure, and Flink's."""

from __future__ import annotations

from aiomailbox.keygroups.assigner import (
    CACHE_ENTRIES_MAX,
    KeyGroupAssigner,
    KeyTypeAgreement,
    normalized_key,
)
from aiomailbox.keygroups.assignment import (
    DEFAULT_LOWER_BOUND_MAX_PARALLELISM,
    UPPER_BOUND_MAX_PARALLELISM,
    KeyGroupRange,
    check_parallelism,
    default_max_parallelism,
    key_group,
    key_group_of_hash,
    key_group_range,
    operator_index,
)
from aiomailbox.keygroups.hashing import (
    bit_mix,
    hash_code,
    int32_hash_code,
    jenkins_hash,
    long_to_int_with_bit_mixing,
    murmur_hash,
)
from aiomailbox.keygroups.rescale import (
    KeyGroupPiece,
    RescaledSubtask,
    rescale_key_groups,
)

__all__ = [
    "CACHE_ENTRIES_MAX",
    "DEFAULT_LOWER_BOUND_MAX_PARALLELISM",
    "UPPER_BOUND_MAX_PARALLELISM",
    "KeyGroupAssigner",
    "KeyGroupPiece",
    "KeyGroupRange",
    "KeyTypeAgreement",
    "RescaledSubtask",
    "bit_mix",
    "check_parallelism",
    "default_max_parallelism",
    "hash_code",
    "int32_hash_code",
    "jenkins_hash",
    "key_group",
    "key_group_of_hash",
    "key_group_range",
    "long_to_int_with_bit_mixing",
    "murmur_hash",
    "normalized_key",
    "operator_index",
    "rescale_key_groups",
]
