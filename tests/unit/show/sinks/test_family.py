"""What every sink of `unisono.sinks` keeps to. Only the run of W&B is a stand-in here: see `wandb_run`."""

import dataclasses
import math
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import pytest

import unisono.sinks
from consoles import Console
from unisono.common.errors import UserError
from unisono.show.sinks import delivery as delivery_module
from unisono.show.sinks.choosing import SINKS, checked, chosen, read
from unisono.show.sinks.feed import Feed
from unisono.show.sinks.sink import OpenSink, Sink
from unisono.sinks import MLflow, OpenTelemetry, Prometheus, TensorBoard, WandB, Webhook
from unit.show.sinks.build import finding, reading, record, run, without
from unit.show.sinks.payloads import PAYLOADS


@dataclass(frozen=True)
class Member:
    """One sink of the family."""

    texts: dict[str, Sink]
    """What a user writes, and what comes of it: without options, and with all of them."""

    make: Callable[[str], Sink]
    """With the address of a server, where it needs one."""

    surroundings: Callable = lambda folder: nullcontext()
    """What the script has to begin before numbers can go anywhere."""


@contextmanager
def mlflow_run(folder):
    mlflow = pytest.importorskip("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        before = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri(folder.joinpath("mlruns").as_uri())
        try:
            with mlflow.start_run():
                yield
        finally:
            mlflow.set_tracking_uri(before)


@contextmanager
def wandb_run(folder):
    """Stands for a run that the script began: a real one takes seconds, and test_wandb has it."""
    module = pytest.importorskip("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "run", ScriptsRun())
        yield


class ScriptsRun:
    """Takes what a run of W&B takes, and no more."""

    def __init__(self):
        self.summary = {}

    def define_metric(self, name, step_metric=None):
        assert isinstance(name, str)

    def log(self, row, commit):
        assert all(isinstance(value, int | float) for value in row.values())
        assert commit is False

    def alert(self, title, text, level):
        assert len(title) < 64
        assert level in ("INFO", "WARN", "ERROR")


MEMBERS = {
    "MLflow": Member({"mlflow": MLflow(), "mlflow:names=manuals": MLflow("manuals")}, lambda url: MLflow(), mlflow_run),
    "OpenTelemetry": Member(
        {"opentelemetry": OpenTelemetry(), "opentelemetry:endpoint=http://c:4318": OpenTelemetry("http://c:4318")},
        OpenTelemetry,
    ),
    "Prometheus": Member(
        {"prometheus": Prometheus(), "prometheus:textfile=x.prom,port=9108": Prometheus("x.prom", 9108)},
        lambda url: Prometheus(),
    ),
    "TensorBoard": Member(
        {
            "tensorboard": TensorBoard(),
            "tensorboard:log_dir=/logs/a b,names=manuals": TensorBoard("/logs/a b", "manuals"),
        },
        lambda url: TensorBoard(),
    ),
    "WandB": Member({"wandb": WandB(), "wandb:names=manuals": WandB("manuals")}, lambda url: WandB(), wandb_run),
    "Webhook": Member(
        {
            "webhook:url=https://a.b/c?d=e:f": Webhook("https://a.b/c?d=e:f"),
            "webhook:url=https://a.b/c?d=e:f,least=critical": Webhook("https://a.b/c?d=e:f", "critical"),
        },
        Webhook,
    ),
}
each = pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)


def test_every_public_sink_is_in_the_family_and_can_be_named():
    assert set(MEMBERS) == set(unisono.sinks.__all__)
    assert set(SINKS.values()) == {getattr(unisono.sinks, name) for name in MEMBERS}
    for name, member in MEMBERS.items():
        assert {type(sink) for sink in member.texts.values()} == {getattr(unisono.sinks, name)}


@each
def test_options_are_shown_compared_and_cannot_be_changed_afterwards(member):
    for text, sink in member.texts.items():
        assert isinstance(sink, Sink)
        assert dataclasses.is_dataclass(sink)
        assert sink.name == text.partition(":")[0]
        assert SINKS[sink.name] is type(sink)
        for option in dataclasses.fields(sink):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(sink, option.name, None)
        shown = [f"{one.name}={getattr(sink, one.name)!r}" for one in dataclasses.fields(sink) if one.repr]
        assert repr(sink) == f"{type(sink).__name__}({', '.join(shown)})"
        assert sink == replace(sink)
        assert hash(sink) == hash(replace(sink))


@each
def test_text_becomes_the_sink_it_names(member):
    (plain, _), (full, sink) = member.texts.items()
    # All options are in it: a new one has to be read too.
    assert [pair.partition("=")[0] for pair in full.partition(":")[2].split(",")] == [
        option.name for option in dataclasses.fields(sink)
    ]
    for text, expected in member.texts.items():
        assert read(text) == [expected]
        assert chosen(text, "") == chosen(expected, text) == chosen(None, f"{text};{text}") == (expected,)
    assert read(f" {plain} ; {full};") == list(member.texts.values())


@each
def test_unknown_options_are_refused_with_those_there_are(member):
    sink = next(iter(member.texts.values()))
    options = ", ".join(option.name for option in dataclasses.fields(sink))
    with pytest.raises(UserError, match=f"the sink `{sink.name}` takes the options {options}"):
        read(f"{sink.name}:colour=blue")
    with pytest.raises(UserError, match="needs a value"):
        read(f"{sink.name}:{dataclasses.fields(sink)[0].name}=")


SOON = 10.0
"""Seconds after which a test fails rather than waits."""


@pytest.fixture(autouse=True)
def tried_once_at_the_end(monkeypatch):
    """What fails then is not tried again: no test waits for the time to be over."""
    monkeypatch.setattr(delivery_module, "LAST_PAUSE", 2 * SOON)


@each
def test_a_missing_package_is_told_before_training_and_when_it_is_opened(member, monkeypatch, tmp_path):
    text, sink = next(iter(member.texts.items()))
    assert checked(text) == text
    if not sink.package:
        return
    without(sink.package.partition(".")[0], monkeypatch)
    with pytest.raises(UserError) as refusal:
        checked(text)
    assert f'pip install "unisono[{sink.name}]"' in str(refusal.value)
    console = Console()
    feed = Feed([sink], console)
    feed.start(run(tmp_path))
    feed.close("", seconds=SOON)
    assert [f'pip install "unisono[{sink.name}]"' in told for told in console.complaints] == [True]


@pytest.fixture
def opened(server, tmp_path):
    """Opens a sink among what it needs."""
    entered = []

    def open_sink(member, name="train", part=""):
        surroundings = member.surroundings(tmp_path)
        surroundings.__enter__()
        entered.append(surroundings)
        return member.make(server.url).open(run(tmp_path, name=name, part=part))

    yield open_sink
    for surroundings in entered:
        surroundings.__exit__(None, None, None)


ODD = [math.nan, math.inf, -math.inf, 0.0, 1e308, 5e-324]


@each
def test_no_name_and_no_number_keeps_it_from_working(member, opened):
    """Names as in a run file from elsewhere, numbers as in a run gone wrong."""
    sink = opened(member, name='"}\n<b>\x1b[31m$(id)')
    assert isinstance(sink, OpenSink)
    assert sink.seconds > 0
    for step, number in enumerate(ODD):
        numbers = {"loss_mean": number, "grad_norm": number, "cos_mean": None, "loss_W": (number, None)}
        sink.metrics([reading(step, **numbers), reading(step, norm_W=(), cos_W=())])
    for number, payload in enumerate(PAYLOADS[:: len(PAYLOADS) // 10]):
        odd = {"title": payload, "why": payload, "where": (payload,), "evidence": {payload: ODD[number % len(ODD)]}}
        sink.finding(finding(f"UN{number}", remedies=(payload,), severity=SEVERITIES[number % 3], ranks=(), **odd))
    sink.close("%s\n")


SEVERITIES = ("info", "warning", "critical")


@each
def test_a_finding_may_come_again_graver(member, opened):
    sink = opened(member, part="model-2")
    for severity in SEVERITIES:
        sink.finding(finding(severity=severity))
    sink.close("found: UN101")


@each
def test_a_run_of_which_nothing_was_heard_can_be_closed_and_closed_again(member, opened):
    sink = opened(member)
    sink.close("nothing was recorded")
    sink.close("nothing was recorded")


@each
@pytest.mark.parametrize("place", ["open", "metrics", "finding", "close"])
def test_an_error_is_told_once_and_never_reaches_the_caller(member, place, opened, monkeypatch, tmp_path):
    sink = opened(member)

    def fail(*_):
        raise OSError(28, "\x1b[31mNo space left on device")

    if place != "open":
        monkeypatch.setattr(type(sink), place, fail)
    broken = replace(next(iter(member.texts.values())))
    monkeypatch.setattr(type(broken), "open", fail if place == "open" else lambda *_: sink)
    console = Console()
    feed = Feed([broken], console)
    feed.start(run(tmp_path))
    feed.step(record(1))
    feed.finding(finding())
    feed.close("over", seconds=SOON)
    told = [one for one in console.complaints if "No space left on device" in one]
    assert len(console.complaints) == len(told) == 1
    assert told[0].startswith(f"the sink `{broken.name}` fails (OSError: ")
    assert told[0].isprintable()
    missed = " ".join(console.said)
    assert ("UN101" in missed) == (place in ("open", "finding"))
    assert ("1 reading" in missed) == (place in ("open", "metrics"))
