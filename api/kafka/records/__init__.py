"""Record batches of Kafka, version 2, as Arrow columns and back; pure: no file, no socket, no clock."""

from __future__ import annotations

from deltamq.api.kafka.records.batch import BatchHeader, batches_of
from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.records.compression import Compression
from deltamq.api.kafka.records.decode import decode_batches, expanded_batch
from deltamq.api.kafka.records.encode import encode_records
from deltamq.api.kafka.records.native import DECODER_SOURCE, ENCODER_SOURCE, NativeDecoder, NativeEncoder
from deltamq.api.kafka.records.varints import Int64s

__all__ = [
    "DECODER_SOURCE",
    "ENCODER_SOURCE",
    "BatchHeader",
    "Compression",
    "Int64s",
    "NativeDecoder",
    "NativeEncoder",
    "Records",
    "batches_of",
    "decode_batches",
    "encode_records",
    "expanded_batch",
]
