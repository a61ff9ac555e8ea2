"""Damaged run files, each made from its seed: odd values of every type, wrong shapes, lost, repeated and torn lines."""

import copy
import json
import random
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import invented_runs as invented
from unisono.records import (
    RECORD_TYPES,
    BatchRecord,
    CoverageRecord,
    DepartureRecord,
    FactsRecord,
    HeartbeatRecord,
    LocalStep,
    ReplicasRecord,
    StreamsRecord,
    ValidationRecord,
    to_line,
)

GOLDEN = Path(__file__).parent / "golden" / "run.jsonl"

INTS = (0, 1, -1, 2, 3, 7, 255, 300_000_000, 2**31, 2**53, 2**63 - 1, -(2**63), 2**63, 10**30)
FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 1e-9, 1e-45, 1e-160, 1e-308, 5e-324, 1e9, 1e38, 1e74, 1e76, 1e100, 1e155, 1e160),
    *(1e300, 1.7976931348623157e308, -1e38, -1e100, -1e300, 1e11, 9.9e10, -9.9e10, "nan", "inf", "-inf"),
)
TEXTS = (
    *("", "nan", "-1", "0", "1e400", "9" * 30, "9" * 5000, "²", "٣", "½", "None", "yes", "weights", "a" * 3000),
    *(
        "\ud800",
        "\x00\x1b[31m",
        "é\n\r\t",
        "🎭" * 20,
        "<script>",
        "[a](http://b)",
        "http://example.com",
        "|`*_",
        "%s{}",
    ),
    *("loader", "optimizer", "skip, halt", "roll-back", "unheard", "missing", "directions-lost", "torch in forward"),
)
SHAPES = (None, [], {}, [[]], [[[]]], {"a": {"b": 1}}, [None], [None, None], [{}], True, False, "text", [True], [""])


def bases():
    """Healthy and faulty runs, as lists of JSON objects."""
    from unit.diagnose.test_engine import FAULTS

    golden = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    faulty = [[invented.header(), *records] for records, _ in FAULTS.values()]
    made = (_steered(), _losses_alone(), _guarded(), _long(), *faulty)
    return [golden, *([json.loads(to_line(record)) for record in records] for records in made)]


def _steered():
    steered = invented.steered(left_out=lambda step: (1,) if step % 3 else ())
    return [invented.header(), invented.attempt(4), *invented.steps(count=40, **steered), invented.end(39)]


def _losses_alone():
    """Hardly a chart: most of the time of a report is its drawing."""
    quick = {"every": 10**9, "first": 1, "count": 40, "samples_W": (8, 8), "indexed": 2, "compared": 2, "fresh": True}
    return [
        invented.header(),
        invented.attempt(2),
        *invented.steps(workers=2, **quick),
        *_evidence(2),
        invented.end(40),
    ]


def _guarded():
    first, second = {"every": 4, "matrices": False}, {"every": 4, "matrices": False, "number": 2, "seed": 5}
    return [
        invented.header(),
        invented.attempt(3),
        *invented.steps(workers=3, count=20, **first),
        invented.decision(9, ranks=(1,), evidence={"loss": 3.5}),
        invented.decision(12, "skip, roll-back", to_step=4, dry=True),
        *_evidence(3),
        invented.attempt(3, number=2, first_step=10),
        *invented.steps(workers=3, first=10, count=30, **second),
        invented.decision(39, "halt", attempt=2),
        invented.end(39, number=2),
    ]


def _long():
    """Long enough for limits and most statistics."""
    parts = {"samples_W": (8, 8), "audits": ("reduced", "used", "weights", "state"), "parts": 1}
    return [invented.header(), invented.attempt(2), *invented.steps(2, 260, matrices=False, **parts), invented.end(259)]


def _evidence(workers):
    """One record of each kind that `invented` has none of."""
    at, time = {"attempt": 1, "step": 15}, 1e9
    twins, floats = (0,) * workers, (0.5,) * workers
    return [
        FactsRecord(
            **at,
            time=time,
            topic="loader",
            same={"sampler replicas": "4", "batch size": "8", "number": "0"},
            differ={"sampler rank": tuple(map(str, range(workers)))},
        ),
        FactsRecord(**at, time=time, topic="optimizer", same={"class": "SGD"}, differ={"lr": ("0.1",) * workers}),
        FactsRecord(**at, time=time, topic="parameters", same={"not optimised": "a, b", "number": "3"}),
        ReplicasRecord(**at, time=time, compared=4, differing=1, parameters=("a",), weights_W=twins, distance_W=floats),
        CoverageRecord(
            **at,
            time=time,
            loader=0,
            epoch=1,
            complete=True,
            drawn_W=(80,) * workers,
            distinct_W=(80.0,) * workers,
            distinct=120.0,
            dataset=160,
            repeated_W=(False,) * workers,
            held_out=0.5,
        ),
        StreamsRecord(**at, time=time, consumed=("torch in forward",), same={"torch in forward": twins}),
        BatchRecord(**at, time=time, rank=1, loss=9.0, indices=(3, 4)),
        ValidationRecord(**at, time=time, rank=0, validation=0.25),
        HeartbeatRecord(**at, time=time),
        DepartureRecord(**at, time=time, rank=1, how="signal", detail="SIGKILL"),
        LocalStep(**at, time=time, rank=1, loss=0.5),
    ]


@cache
def base_texts():
    return [json.dumps(base) for base in bases()]


@cache
def hints_of(cls):
    return get_type_hints(cls)


def damaged(seed):
    """The bytes of one damaged run file."""
    dice = random.Random(seed)
    records = json.loads(dice.choice(base_texts() if dice.random() < 0.8 else base_texts()[:5]))
    for _ in range(dice.choice((1, 1, 1, 2, 3, 6, 12))):
        dice.choice(MUTATIONS)(dice, records)
    lines = [record if isinstance(record, bytes) else _line(record) for record in records]
    for _ in range(dice.choice((0, 0, 0, 1, 2))):
        dice.choice(DAMAGES)(dice, lines)
    return b"\n".join(lines) + b"\n" * dice.choice((1, 1, 1, 0))


def _line(record):
    return json.dumps(record, separators=(",", ":")).encode()


def value(dice, hint=None):
    """Some value; of the type of a field where that is known, and now and then of another."""
    if hint is None or dice.random() < 0.1:
        return copy.deepcopy(dice.choice(dice.choice((INTS, FLOATS, TEXTS, SHAPES))))
    if hint in (int, float, bool, str):
        return dice.choice({int: INTS, float: FLOATS, bool: (True, False), str: TEXTS}[hint])
    args = [arg for arg in get_args(hint) if arg not in (type(None), Ellipsis)]
    if type(None) in get_args(hint):
        return None if dice.random() < 0.2 else value(dice, args[0])
    if getattr(hint, "__origin__", None) is tuple:
        return [value(dice, args[0]) for _ in range(dice.choice((0, 1, 2, 2, 3, 4, 4, 4, 9)))]
    if len(args) == 2:
        return {dice.choice(TEXTS): value(dice, args[1]) for _ in range(dice.choice((0, 1, 2, 5)))}
    return {field.name: value(dice, hints_of(hint)[field.name]) for field in fields(hint)}


def _some(dice, records):
    """A JSON object of the run; one is made where none is left."""
    found = [record for record in records if isinstance(record, dict)]
    if not found:
        records.append({"type": "step"})
        return records[-1]
    # Steps are many; every other kind has its turn.
    kind = dice.choice(sorted({str(record.get("type")) for record in found}))
    alike = [record for record in found if str(record.get("type")) == kind]
    return dice.choice(alike if dice.random() < 0.5 else found)


def _hints(record):
    kind = record.get("type")
    return hints_of(RECORD_TYPES[kind]) if isinstance(kind, str) and kind in RECORD_TYPES else {}


def _hint(record, name):
    hint = _hints(record).get(name)
    return None if hint is None or "ClassVar" in str(hint) else hint


def odd_value(dice, records):
    record = _some(dice, records)
    name = dice.choice(list(record) or ["type"])
    record[name] = value(dice, _hint(record, name))


def odd_value_inside(dice, records):
    """In a list or an object of the record."""
    record = _some(dice, records)
    inner = [part for part in record.values() if isinstance(part, list | dict) and part]
    if not inner:
        return
    part = dice.choice(inner)
    while isinstance(part, list | dict) and part:
        place = dice.choice(list(part) if isinstance(part, dict) else range(len(part)))
        if not isinstance(part[place], list | dict) or not part[place] or dice.random() < 0.3:
            like = type(part[place]) if type(part[place]) in (int, float, bool, str) else None
            part[place] = value(dice, like)
            return
        part = part[place]


def lasting_value(dice, records):
    """The same oddity in all records of a kind from one on: statistics look at many."""
    model = _some(dice, records)
    kind, names = model.get("type"), [name for name in _hints(model) if _hint(model, name) is not None]
    alike = [record for record in records if isinstance(record, dict) and record.get("type") == kind]
    if not names:
        return
    name = dice.choice(names)
    new, begin = value(dice, _hint(model, name)), dice.randrange(len(alike))
    for record in alike[begin:]:
        if isinstance(record.get(name), list) and not isinstance(new, list):
            record[name] = [new] * len(record[name])
        else:
            record[name] = copy.deepcopy(new)


def same_everywhere(dice, records):
    """Every number of a field becomes one extreme one, shapes kept."""
    model = _some(dice, records)
    names = [name for name, part in model.items() if isinstance(part, float | list)]
    if not names:
        return
    name, number = dice.choice(names), dice.choice(FLOATS)
    begin = dice.randrange(len(records))
    for record in records[begin:]:
        if isinstance(record, dict) and name in record:
            record[name] = _filled(record[name], number)


def _filled(part, number):
    if isinstance(part, list):
        return [_filled(one, number) for one in part]
    return number if isinstance(part, float) else part


def scaled(dice, records):
    factor, name = dice.choice((1e20, 1e60, 1e90, 1e200, 1e-90, 1e-200, -1.0, 0.0)), None
    model = _some(dice, records)
    names = [name for name, part in model.items() if isinstance(part, float | list) and name != "time"]
    if not names:
        return
    name, begin = dice.choice(names), dice.randrange(len(records))
    for record in records[begin:]:
        if isinstance(record, dict) and name in record:
            record[name] = _times(record[name], factor)


def _times(part, factor):
    if isinstance(part, list):
        return [_times(one, factor) for one in part]
    if not isinstance(part, float):
        return part
    product = part * factor
    return product if abs(product) < float("inf") else "inf"


def new_field(dice, records):
    record = _some(dice, records)
    names = [name for name in _hints(record) if _hint(record, name) is not None]
    if names:
        name = dice.choice(names)
        record[name] = value(dice, _hint(record, name))


def lost_field(dice, records):
    record = _some(dice, records)
    if record:
        del record[dice.choice(list(record))]


def swapped_fields(dice, records):
    record = _some(dice, records)
    if len(record) > 2:
        one, other = dice.sample(list(record), 2)
        record[one], record[other] = record[other], record[one]


def other_length(dice, records):
    record = _some(dice, records)
    lists = [part for part in record.values() if isinstance(part, list) and part]
    if lists:
        part = dice.choice(lists)
        part[:] = dice.choice((part * 2, part[:-1], part * 50, part[:1]))


def other_world(dice, records):
    for record in records:
        if isinstance(record, dict) and record.get("type") == "attempt" and dice.random() < 0.7:
            record["world"] = dice.choice((0, -1, -4, 1, 2, 3, 5, 64, 300_000_000, 2**62))
            if dice.random() < 0.3 and isinstance(record.get("workers"), list):
                record["workers"] = record["workers"][: dice.randrange(4)] * dice.randrange(3)


def made_up(dice, records):
    """A record of any kind, every field by chance."""
    kind = dice.choice(list(RECORD_TYPES))
    cls = RECORD_TYPES[kind]
    record = {"type": kind, **{one.name: value(dice, hints_of(cls)[one.name]) for one in fields(cls)}}
    for name, usual in (("attempt", 1), ("step", dice.randrange(60)), ("time", 1e9)):
        if name in record and dice.random() < 0.8:
            record[name] = usual
    records.insert(dice.randrange(len(records) + 1), record)


def repeated(dice, records):
    begin = dice.randrange(len(records) + 1)
    part = copy.deepcopy(records[begin : begin + dice.choice((1, 2, 30))])
    records[begin:begin] = part * dice.choice((1, 1, 2))


def reordered(dice, records):
    begin = dice.randrange(len(records) + 1)
    part = records[begin : begin + dice.choice((2, 10, 1000))]
    dice.shuffle(part)
    records[begin : begin + len(part)] = part


def lost_records(dice, records):
    begin = dice.randrange(len(records) + 1)
    del records[begin : begin + dice.choice((1, 5, 50))]


def of_another_run(dice, records):
    other = json.loads(dice.choice(base_texts()))
    begin = dice.randrange(len(other))
    records += other[begin : begin + dice.choice((1, 20, 100))]


def other_numbers(dice, records):
    """Steps and attempts that go back, stand still or run away."""
    name = dice.choice(("step", "attempt", "time", "epoch", "first_step"))
    factor, offset = dice.choice((0, 1, -1, 2, 10**6, 10**13)), dice.choice((0, 1, -1, -50, 10**12, 2**60, -(2**60)))
    begin = dice.randrange(len(records) + 1)
    for record in records[begin:]:
        if isinstance(record, dict) and isinstance(record.get(name), int | float):
            record[name] = record[name] * factor + offset


MUTATIONS = (
    *(odd_value, odd_value_inside, lasting_value, same_everywhere, scaled, new_field, lost_field, swapped_fields),
    *(other_length, other_world, made_up, repeated, reordered, lost_records, of_another_run, other_numbers),
    *(lasting_value, same_everywhere, made_up),
)


def torn(dice, lines):
    place = dice.randrange(len(lines)) if lines else 0
    if lines:
        lines[place] = lines[place][: dice.randrange(len(lines[place]) + 1)]


def flipped(dice, lines):
    if lines and any(lines):
        place = dice.choice([place for place, line in enumerate(lines) if line])
        line = bytearray(lines[place])
        for _ in range(dice.choice((1, 1, 5))):
            line[dice.randrange(len(line))] = dice.randrange(256)
        lines[place] = bytes(line)


def rubbish(dice, lines):
    lines.insert(dice.randrange(len(lines) + 1), dice.choice(RUBBISH))


def cut_short(dice, lines):
    del lines[dice.randrange(len(lines) + 1) :]


RUBBISH = (
    *(
        b"",
        b"null",
        b"[]",
        b"{}",
        b"3",
        b'"x"',
        b"\0" * 300,
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"{" * 5000,
        b"[" * 100_000,
    ),
    *(b'{"type":"step","step":NaN}', b'{"type":"step","step":1,"step":2}', b'{"type":"later","x":1}', b"x" * 1_000_001),
    *(b'{"type":"run","format":99,"run":"r","time":1.0,"script":"","unisono":""}', b'{"type":[]}', b'{"type":"step"}'),
    b'{"type":"step","attempt":1,"step":1,"time":1.0,"loss_W":' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"type":"step","attempt":' + b"9" * 6000 + b',"step":1,"time":1.0}',
)
DAMAGES = (torn, torn, flipped, flipped, rubbish, rubbish, cut_short)
