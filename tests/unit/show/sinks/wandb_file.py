"""Reads what an offline W&B run has left on disk: records in the framing of LevelDB's log."""

import json
import struct

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER, FILE_HEADER = 32 * 1024, 7, 7
FULL, FIRST, LAST = 1, 2, 4


def records(path):
    content = path.read_bytes()
    place, whole = FILE_HEADER, b""
    while place + HEADER <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        part = content[place + HEADER : place + HEADER + length]
        if len(part) < length:
            return
        whole = part if kind in (FULL, FIRST) else whole + part
        if kind in (FULL, LAST):
            yield Record.FromString(whole)
        place += HEADER + length


def is_complete(path):
    return any(record.HasField("exit") for record in records(path))


def rows(path):
    """The history, a dictionary a row."""
    return [_values(record.history.item) for record in records(path) if record.HasField("history")]


def summary(path):
    found = {}
    for record in records(path):
        if record.HasField("summary"):
            found |= _values(record.summary.update)
    return found


def alerts(path):
    return [record.alert for record in records(path) if record.HasField("alert")]


def metrics(path):
    return [record.metric for record in records(path) if record.HasField("metric")]


def _values(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
