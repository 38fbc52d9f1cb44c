"""A mock Kafka cluster that does as it is told on stdin. It is in librdkafka, and only C can reach its switches."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import confluent_kafka

LIBRARIES = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
PRODUCE = 0  # the API's number
BROKER = 1


def main() -> None:
    library = ctypes.CDLL(str(next(LIBRARIES.glob("librdkafka*"))))
    pointer = ctypes.c_void_p
    library.rd_kafka_conf_new.restype = pointer
    library.rd_kafka_new.restype = pointer
    library.rd_kafka_mock_cluster_new.restype = pointer
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    said = ctypes.create_string_buffer(500)
    handle = pointer(library.rd_kafka_new(0, pointer(library.rd_kafka_conf_new()), said, ctypes.c_size_t(len(said))))
    cluster = pointer(library.rd_kafka_mock_cluster_new(handle, 1))
    library.rd_kafka_mock_topic_create(cluster, b"events", 4, 1)
    address = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    print(json.dumps({"port": int(address.rpartition(":")[2])}), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["down"]:
                library.rd_kafka_mock_broker_set_down(cluster, BROKER)
            case ["up"]:
                library.rd_kafka_mock_broker_set_up(cluster, BROKER)
            case ["refuse", code, times]:  # the next produce requests
                codes = [ctypes.c_int(int(code))] * int(times)
                library.rd_kafka_mock_push_request_errors(
                    cluster, ctypes.c_int16(PRODUCE), ctypes.c_size_t(len(codes)), *codes
                )
            case ["topic_error", topic, code]:
                library.rd_kafka_mock_topic_set_error(cluster, topic.encode(), ctypes.c_int(int(code)))
        print("done", flush=True)


if __name__ == "__main__":
    main()
