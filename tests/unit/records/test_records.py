import json
import math
import random
import struct
import sys
from dataclasses import FrozenInstanceError, fields
from typing import get_type_hints

import pytest

from unisono.records import (
    RECORD_TYPES,
    AttemptRecord,
    BatchRecord,
    CoverageRecord,
    DecisionRecord,
    DepartureRecord,
    EndRecord,
    FactsRecord,
    HeartbeatRecord,
    LocalStep,
    NoteRecord,
    ReplicasRecord,
    RunRecord,
    StepRecord,
    StreamsRecord,
    ValidationRecord,
    WorkerFacts,
    from_line,
    to_line,
)
from unisono.records import (
    lines as _lines,
)

NOW = 1763199640.123456
RECORDS = [
    RunRecord(1, "r", NOW, "träin\n.py", "0.1.0"),
    AttemptRecord(
        1, NOW, 2, 0, (WorkerFacts(0, "a", 7, "cpu"), WorkerFacts(1, "b", 8, "cuda:0")), ("head", "body"), 10
    ),
    AttemptRecord(1, NOW, 1, 0, ()),
    StepRecord(1, 5, NOW),
    StepRecord(1, 5, NOW, heard=True, loss_W=(0.5, None), finite_W=(True, False, None)[:2], nonfinite_W=(0, None)),
    StepRecord(2, 6, NOW, cos_WW=((1.0, 0.25), (0.25, None)), norm_GW=((1.0, 2.0),), norm_G=(3.0,), window_start=0),
    StepRecord(
        *(1, 7, NOW),
        audits=("reduced", "weights"),
        part=3,
        parts=50,
        weights_W=(0, None, 2, 0),
        weight_spread=1e-7,
        lr_W=(0.1, None, 0.2, 0.1),
        samples_W=(4, 4, None, 3),
        same_content_W=(0, 0, 2, None),
        fresh=True,
        repeats=3,
        input_mean_W=(0.1, None, 0.2, 0.1),
        input_scale_W=(1.0, None, 1.0, 2.0),
    ),
    StepRecord(1, 8, NOW, kept_workers=2, weight_W=(0.5, 0.0, 0.5), distance_W=(0.25, None, 1.75)),
    StepRecord(1, 9, NOW, skipped=True, kept_workers=0),
    FactsRecord(1, 0, NOW, "loader", {"sämpler": "a\n"}, {"sampler rank": ("0", None, "", "2")}),
    FactsRecord(1, 0, NOW, "model"),
    ReplicasRecord(1, 3, NOW, 12, 2, ("a.weight", "b"), (0, None, 2), (0.0, None, 1e-3)),
    ReplicasRecord(1, 3, NOW, 12),
    CoverageRecord(
        *(1, 40, NOW, 1, 2, True, (10, None), (9.5, None)),
        distinct=18.25,
        dataset=20,
        repeated_W=(True, False, None),
        held_out=0.0,
    ),
    CoverageRecord(1, 40, NOW, 0, 0),
    StreamsRecord(1, 2, NOW, ("torch in forward", "numpy in loading"), {"torch in forward": (0, 0, None, 3)}),
    StreamsRecord(1, 2, NOW),
    BatchRecord(1, 9, NOW, 3, 0.5, (7, None, 2**40)),
    BatchRecord(1, 9, NOW, 0),
    DecisionRecord(1, 812, NOW, "1-812-3", "skip", "rank 2's loss is not finite"),
    DecisionRecord(
        *(2, 812, NOW, "2-812-1", "roll-back, skip", "too lo\u2028ng", "explosion", (2, None)),
        evidence={"nörm ratio": 212.5, "": math.inf, "steps": -0.0},
        dry=True,
        to_step=700,
        outcome="</script>",
        digest="00ff",
    ),
    ValidationRecord(1, -1, NOW, 4, 0.75),
    ValidationRecord(2, 99, NOW, 0, -math.inf),
    NoteRecord(1, 0, NOW, '</script>\x1b[31m"\u2028'),
    NoteRecord(1, 0, NOW, "silent", "missing", (1, 3)),
    EndRecord(1, 9, NOW, 10, 5, 0, 0.001),
    EndRecord(1, 9, NOW, 10, 5, 0, ended="crashed"),
    HeartbeatRecord(1, 9, NOW),
    DepartureRecord(1, 9, NOW, 3, "signal", "SIGKILL", 1),
    LocalStep(1, 3, 9, NOW, loss=0.5, finite=False),
]
VALUES = {
    int: 3,
    int | None: 4,
    float: 1.5,
    float | None: 2.5,
    bool: True,
    bool | None: True,
    str: "text",
    tuple[str, ...]: ("a", "b"),
    tuple[int | None, ...]: (0, None),
    tuple[bool | None, ...]: (True, None),
    tuple[float | None, ...]: (0.5, None),
    tuple[tuple[float | None, ...], ...]: ((0.5, None), (1.0, 2.0)),
}
DECISION = '{"type":"decision","attempt":1,"step":5,"time":1.5,"id":"1-5-1","action":"skip","reason":"r"'
STEP = '{"type":"step","attempt":1,"step":5,"time":1.5'


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_as_it_was(record):
    assert from_line(to_line(record)) == record


def test_every_field_of_a_step_comes_back():
    hints = get_type_hints(StepRecord)
    step = StepRecord(**{field.name: VALUES[hints[field.name]] for field in fields(StepRecord)})
    assert from_line(to_line(step)) == step


def test_every_kind_is_tried_above():
    assert {record.kind for record in RECORDS} == set(RECORD_TYPES)


@pytest.mark.parametrize("record", RECORDS)
def test_a_line_is_one_line_of_ascii_json_with_its_type_first(record):
    line = to_line(record)
    assert line.isascii()
    assert line.isprintable()
    assert next(iter(json.loads(line).items())) == ("type", record.kind)


def test_a_record_that_was_read_is_frozen():
    step = from_line(STEP + "}")
    with pytest.raises(FrozenInstanceError):
        step.step = 6


def test_what_is_not_known_is_left_out():
    assert json.loads(to_line(StepRecord(1, 5, 1.5))) == {"type": "step", "attempt": 1, "step": 5, "time": 1.5}


def test_a_line_from_before_steering_says_nothing_of_it():
    step = from_line(STEP + ',"skipped":true}')
    assert (step.kept_workers, step.weight_W, step.distance_W) == (None, (), ())


def test_a_false_that_is_not_the_default_is_written():
    assert '"finite":false' in to_line(LocalStep(1, 0, 0, 1.5, finite=False))


def test_non_finite_floats_are_texts():
    line = to_line(StepRecord(1, 5, 1.5, loss_W=(math.nan, math.inf, -math.inf, None), loss_mean=math.nan))
    assert '"loss_W":["nan","inf","-inf",null],"loss_mean":"nan"' in line
    step = from_line(line)
    assert step.loss_W[1:] == (math.inf, -math.inf, None)
    assert math.isnan(step.loss_W[0])
    assert math.isnan(step.loss_mean)


def test_float32_survives_exactly():
    chance = random.Random(0)
    values = struct.unpack("2000f", chance.randbytes(8000))
    values = tuple(value for value in values if math.isfinite(value))
    read = from_line(to_line(StepRecord(1, 5, 1.5, loss_W=values))).loss_W
    assert struct.pack(f"{len(values)}f", *read) == struct.pack(f"{len(values)}f", *values)


def test_time_keeps_microseconds():
    assert from_line(to_line(StepRecord(1, 5, NOW))).time == NOW


def test_whole_numbers_become_floats():
    (value,) = from_line(STEP + ',"loss_W":[1]}').loss_W
    assert type(value) is float


OLD_LINES = {
    "step": STEP + ',"heard":true,"loss_W":[0.5,0.6],"finite_W":[true,true],"norm_W":[1.0,2.0]}',
    "attempt": '{"type":"attempt","attempt":1,"time":1.5,"world":1,"first_step":0,"workers":[]}',
    "note": '{"type":"note","attempt":1,"step":5,"time":1.5,"text":"ranks (1,) have fallen silent"}',
}


@pytest.mark.parametrize("line", OLD_LINES.values(), ids=OLD_LINES)
def test_lines_from_before_a_field_was_known_open(line):
    record = from_line(line)
    written = json.loads(line)
    for field in fields(record):
        if field.name not in written:
            assert getattr(record, field.name) == field.default, field.name
    assert json.loads(to_line(record)) == written


def test_a_step_without_evidence_says_that_nothing_was_compared():
    step = from_line(OLD_LINES["step"])
    assert (step.input_mean_W, step.input_scale_W, step.repeats) == ((), (), None)
    assert (step.audits, step.parts, step.compared, step.indexed, step.fresh, step.lr) == ((), 0, 0, 0, False, None)


def test_mappings_are_written_empty_only_when_they_are():
    assert "differ" not in to_line(FactsRecord(1, 0, 1.5, "model", {"a": "1"}))
    assert '"differ":{"a":["1",null]}' in to_line(FactsRecord(1, 0, 1.5, "model", {}, {"a": ("1", None)}))


def test_records_do_not_share_their_empty_mappings():
    assert from_line(to_line(FactsRecord(1, 0, 1.5, "a"))).same is not FactsRecord(1, 0, 1.5, "b").same


def test_evidence_that_is_not_finite_is_text():
    record = from_line(to_line(ReplicasRecord(1, 3, 1.5, 1, 1, distance_W=(math.inf, math.nan, None))))
    assert record.distance_W[0] == math.inf
    assert math.isnan(record.distance_W[1])
    assert from_line(to_line(CoverageRecord(1, 3, 1.5, 0, 0, held_out=math.inf))).held_out == math.inf


def test_numbers_by_name_that_are_not_finite_are_texts():
    line = to_line(DecisionRecord(1, 5, 1.5, "1-5-1", "skip", "r", evidence={"norm": math.nan, "ratio": 1e308}))
    assert '"evidence":{"norm":"nan","ratio":1e+308}' in line
    assert math.isnan(from_line(line).evidence["norm"])


def test_unknown_keys_and_kinds_are_left_to_newer_versions():
    assert from_line(STEP + ',"new":{"a":[1]}}') == StepRecord(1, 5, 1.5)
    assert from_line('{"type":"finding","code":"UN101"}') is None


def test_lone_surrogates_do_not_survive():
    from_line(to_line(NoteRecord(1, 0, 1.5, "a\udcffb"))).text.encode("utf-8")
    assert from_line(STEP + ',"audits":["weights","a\\udcff"]}').audits == ("weights", "a?")


@pytest.mark.parametrize("line", ["{}\n", "{}\r\n", " {}", "\t{} "])
def test_white_around_a_line_is_no_part_of_it(line):
    assert from_line(line.replace("{}", STEP + "}")) == StepRecord(1, 5, 1.5)


BAD_LINES = {
    "empty": "",
    "not json": "step",
    "torn": STEP,
    "two records": STEP + "}" + STEP + "}",
    "something after it": STEP + "} x",
    "not white to JSON": STEP + "}\u00a0",
    "not an object": "[1]",
    "no type": '{"step":1}',
    "type is a list": '{"type":["step"]}',
    "missing key": '{"type":"step","attempt":1,"step":5}',
    "null where required": '{"type":"step","attempt":1,"step":null,"time":1.5}',
    "float for int": '{"type":"step","attempt":1,"step":5.0,"time":1.5}',
    "bool for int": '{"type":"step","attempt":true,"step":5,"time":1.5}',
    "bool for float": STEP + ',"loss_mean":true}',
    "text for float": STEP + ',"loss_mean":"1.5"}',
    "int for bool": STEP + ',"heard":1}',
    "number for list": STEP + ',"loss_W":1.5}',
    "object for list": STEP + ',"loss_W":{}}',
    "text in list": STEP + ',"loss_W":["x"]}',
    "bool in list": STEP + ',"loss_W":[0.5,true]}',
    "bool among ints": STEP + ',"samples_W":[1,true]}',
    "bool in matrix": STEP + ',"cos_WW":[[1.5,true],[1.5,1.5]]}',
    "null for a row": STEP + ',"cos_WW":[[1.5,1.5],null]}',
    "too large an integer among ints": STEP + ',"samples_W":[1,-9223372036854775809]}',
    "list in list": STEP + ',"loss_W":[[1.5]]}',
    "flat matrix": STEP + ',"cos_WW":[1.5]}',
    "ragged matrix": STEP + ',"cos_WW":[[1.5,2.5],[1.5]]}',
    "workers disagree": STEP + ',"loss_W":[1.5],"norm_W":[1.5,2.5]}',
    "rows disagree with workers": STEP + ',"loss_W":[1.5],"norm_GW":[[1.5,2.5]]}',
    "empty row": STEP + ',"cos_WW":[[]]}',
    "groups disagree": STEP + ',"norm_G":[1.5],"norm_GW":[[1.5],[2.5]]}',
    "NaN literal": STEP + ',"loss_mean":NaN}',
    "Infinity literal": STEP + ',"loss_W":[-Infinity]}',
    "too large an integer": '{"type":"step","attempt":1,"step":9223372036854775808,"time":1.5}',
    "5,000 digits": STEP + ',"loss_mean":' + "9" * 5000 + "}",
    "400 digits": STEP + ',"loss_mean":' + "9" * 400 + "}",
    "100,000 brackets": "[" * 100_000,
    "deep in an unknown key": STEP + ',"new":' + "[" * 100_000 + "]" * 100_000 + "}",
    "key twice": STEP + ',"step":6}',
    "key twice, with a space": STEP + ',"step" :6}',
    "key twice, spelt otherwise": STEP + ',"st\\u0065p":6}',
    "key twice, beside a colon": '{"type":"note","attempt":1,"step":5,"step":5,"time":1.5,"text":"a:b"}',
    "key twice in a worker": '{"type":"attempt","attempt":1,"time":1.5,"world":1,"first_step":0,"workers":'
    '[{"rank":0,"rank":1,"host":"a","pid":7,"device":"cpu"}]}',
    "key twice in a mapping": '{"type":"facts","attempt":1,"step":5,"time":1.5,"topic":"m","same":{"a":"1","a":"1"}}',
    "key twice in an unknown key": STEP + ',"new":{"a":1,"a":1}}',
    "time out of range": '{"type":"step","attempt":1,"step":5,"time":1e300}',
    "time not finite": '{"type":"step","attempt":1,"step":5,"time":"nan"}',
    "workers no list": '{"type":"attempt","attempt":1,"time":1.5,"world":1,"first_step":0,"workers":5}',
    "worker no object": '{"type":"attempt","attempt":1,"time":1.5,"world":1,"first_step":0,"workers":[5]}',
    "worker incomplete": '{"type":"attempt","attempt":1,"time":1.5,"world":1,"first_step":0,"workers":[{"rank":0}]}',
    "text for mapping": '{"type":"facts","attempt":1,"step":5,"time":1.5,"topic":"model","same":"a"}',
    "list for mapping": '{"type":"facts","attempt":1,"step":5,"time":1.5,"topic":"model","same":[]}',
    "number in mapping": '{"type":"facts","attempt":1,"step":5,"time":1.5,"topic":"model","same":{"a":1}}',
    "text for list in mapping": '{"type":"facts","attempt":1,"step":5,"time":1.5,"topic":"model","differ":{"a":"b"}}',
    "float in twins": '{"type":"streams","attempt":1,"step":5,"time":1.5,"same":{"a":[0.5]}}',
    "float in twins of a step": STEP + ',"weights_W":[0.5]}',
    "number in texts": '{"type":"replicas","attempt":1,"step":5,"time":1.5,"compared":1,"parameters":[1]}',
    "number for yes or no": '{"type":"coverage","attempt":1,"step":5,"time":1.5,"loader":0,"epoch":0,"repeated_W":[1]}',
    "text for index": '{"type":"batch","attempt":1,"step":5,"time":1.5,"rank":0,"indices":["1"]}',
    "text in numbers": DECISION + ',"evidence":{"a":"b"}}',
    "list for numbers": DECISION + ',"evidence":[["a",1.5]]}',
    "null in numbers": DECISION + ',"evidence":{"a":null}}',
    "key twice in numbers": DECISION + ',"evidence":{"a":1.5,"a":1.5}}',
    "number for dry": DECISION + ',"dry":1}',
    "float for the step of a checkpoint": DECISION + ',"to_step":1.5}',
    "text for ranks": DECISION + ',"ranks":["1"]}',
    "decision without a reason": DECISION.replace(',"reason":"r"', "}"),
    "twins of other length": STEP + ',"loss_W":[1.5,2.5],"weights_W":[0,1,0]}',
    "number for text": '{"type":"note","attempt":1,"step":5,"time":1.5,"text":5}',
}


ATTEMPT = '{"type":"attempt","attempt":1,"time":1.5,"first_step":0'
WORKERS = ',"workers":[{"rank":0,"host":"","pid":1,"device":""},{"rank":1,"host":"","pid":2,"device":""}]'
COVERAGE = '{"type":"coverage","attempt":1,"step":5,"time":1.5,"loader":0,"epoch":0'
IMPOSSIBLE = {
    "a world without its workers": ATTEMPT + WORKERS + ',"world":300000000}',
    "a world of unnamed workers": ATTEMPT + ',"workers":[],"world":300000000}',
    "a world below zero": ATTEMPT + ',"workers":[],"world":-4}',
    "nobody": ATTEMPT + ',"workers":[],"world":0}',
    "the same rank twice": ATTEMPT + WORKERS.replace('"rank":1', '"rank":0') + ',"world":2}',
    "a step beyond counting": '{"type":"step","attempt":1,"step":9007199254740993,"time":1.5}',
    "a step before all others": '{"type":"step","attempt":1,"step":-2,"time":1.5}',
    "samples below zero": STEP + ',"samples_W":[8,-8]}',
    "a share with nobody": STEP + ',"weights_W":[0,2]}',
    "a stream of nobody": '{"type":"streams","attempt":1,"step":5,"time":1.5,"same":{"torch":[0,7]}}',
    "replicas of nobody": '{"type":"replicas","attempt":1,"step":5,"time":1.5,"compared":1,"weights_W":[4]}',
    "fewer samples than none": COVERAGE + ',"distinct":-1.0}',
    "as many samples as infinity": COVERAGE + ',"distinct_W":[1.0,"inf"]}',
    "a time beyond all calendars": '{"type":"step","attempt":1,"step":5,"time":1e12}',
}


@pytest.mark.parametrize("text", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_be_true_is_refused(text):
    with pytest.raises(ValueError, match=r".") as caught:
        from_line(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("form", ["{0}", "[{0},-0.5]", "[0.25,{0}]"])
def test_numbers_that_nobody_can_reckon_with_are_infinite_or_zero(form):
    field = "loss_W" if "[" in form else "loss_mean"
    read = {}
    for text in ("1e76", "-1e300", "1e-76", "5e-324", "1e74", "-1e-74", "1" + "0" * 80):
        value = getattr(from_line(f'{STEP},"{field}":{form.format(text)}}}'), field)
        read[text] = value if field == "loss_mean" else next(one for one in value if one not in (-0.5, 0.25))
    assert list(read.values()) == [math.inf, -math.inf, 0.0, 0.0, 1e74, -1e-74, math.inf]
    matrix = from_line(STEP + ',"cos_WW":[[1.0,1e99],[1e-99,1.0]]}').cos_WW
    assert matrix == ((1.0, math.inf), (0.0, 1.0))


@pytest.fixture(params=["orjson", "json"])
def parser(request, monkeypatch):
    """Both must read the same: the faster one is not installed everywhere."""
    if request.param == "json":
        monkeypatch.setitem(sys.modules, "orjson", None)
    monkeypatch.setattr(_lines, "_LOADS", _lines._fastest())
    assert (getattr(_lines._LOADS, "__module__", None) == "json.decoder") == (request.param == "json")


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("text", BAD_LINES.values(), ids=BAD_LINES)
def test_bad_lines_give_a_short_reason(text):
    with pytest.raises(ValueError, match=r".") as caught:
        from_line(text)
    assert len(str(caught.value)) < 200


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("digits", [1, 16, 19, 20, 70])
def test_a_float_may_be_written_as_a_whole_number(digits):
    assert from_line(STEP + f',"loss_mean":{"9" * digits},"loss_W":[0.5,{"9" * digits}]}}').loss_mean == float(
        "9" * digits
    )


@pytest.mark.usefixtures("parser")
def test_odd_lines_are_read_alike():
    lines = ("1e999", "-0", "-0.0", "1E5", "0.1e-400", "null", '"inf"', "123456789.123456789123456789")
    values = [from_line(f'{STEP},"loss_mean":{text}}}').loss_mean for text in lines]
    assert list(map(repr, values)) == ["inf", "0.0", "-0.0", "100000.0", "0.0", "None", "inf", "123456789.12345679"]
    assert from_line('{"type":"note","attempt":1,"step":5,"time":1.5,"text":"\\ud800 \\u00e9"}').text == "? é"


def test_the_reason_names_the_field():
    with pytest.raises(ValueError, match="loss_W should be a list"):
        from_line(STEP + ',"loss_W":1.5}')
